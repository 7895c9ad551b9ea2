"""The prompt of a text to be spoken as it is: the text stands where the thinker's answer would."""

from transformers import AutoTokenizer

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds


class GivenText:
    """Makes token ids of a text: a user turn, the header of an answer, then the text.

    The user turn holds what is said of how to speak, and is empty without: of the turns before an
    answer the talker sees those of users only. A special token's name is text like any other.
    """

    def __init__(self, folder: str, ids: SpeechIds) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        self._ids = ids
        self._im_end = self._tokenizer.convert_tokens_to_ids("<|im_end|>")

    def prompt(self, text: str, instructions: str) -> list[int]:
        """As the chat template renders it."""
        ids = self._ids
        return [
            *[ids.im_start, ids.user, *self._tokens(f"\n{instructions}"), self._im_end],
            *self._tokens("\n"),
            *[ids.im_start, ids.assistant, *self._tokens("\n")],
            *self._tokens(text),
        ]

    def _tokens(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return token_ids
