"""The prompt of a text to be spoken as it is: the text stands where the thinker's answer would."""

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds
from omnistage.stages.speech.text_tokens import TextTokenizer, TextTokens


class Qwen3OmniGivenText:
    """Makes token ids of a text: a user turn, the header of an answer, then the text.

    The user turn holds what is said of how to speak, and is empty without: of the turns before an
    answer the talker sees those of users only. A special token's name is text like any other.
    """

    def __init__(self, folder: str, ids: SpeechIds) -> None:
        self._tokenizer = TextTokenizer(folder)
        self._ids = ids
        self._im_end = self._tokenizer.special("<|im_end|>")

    def prompt(self, text: str, instructions: str) -> list[int]:
        """Renders the prompt by the chat template."""
        ids, tokens = self._ids, self._tokenizer.tokens
        return [
            *[ids.im_start, ids.user, *tokens(f"\n{instructions}"), self._im_end],
            *tokens("\n"),
            *[ids.im_start, ids.assistant, *tokens("\n")],
            *tokens(text),
        ]

    def coming(self) -> TextTokens:
        """The tokens of a text that comes behind a prompt without one."""
        return TextTokens(self._tokenizer)
