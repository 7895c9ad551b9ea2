"""The prompt of a text to be spoken as it is: the text stands where the thinker's answer would."""

from transformers import AutoTokenizer

SAID = "\x00"  # in no template
START = "<|im_start|>"


class Qwen2_5OmniGivenText:
    """Makes token ids of a text: the turn of a user who says how to speak, then the text.

    The turn is rendered by the checkpoint's chat template. A special token's name is text like any
    other.
    """

    def __init__(self, folder: str) -> None:
        self._plain = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        turns = [{"role": "user", "content": SAID}]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        before, after = rendered.split(SAID)
        # What is between the last special token and the user's words is read together with them.
        start, mark, self._lead = before.rpartition(START)
        self._before = tokenizer.encode(start + mark, add_special_tokens=False)
        self._after = tokenizer.encode(after, add_special_tokens=False)

    def prompt(self, instructions: str) -> list[int]:
        """Renders the prompt by the template, up to where the answer begins."""
        return [*self._before, *self.tokens(self._lead + instructions), *self._after]

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a text alone."""
        token_ids: list[int] = self._plain.encode(text, add_special_tokens=False)
        return token_ids
