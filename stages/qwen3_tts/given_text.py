"""Token ids of a text to be spoken, of what is said of how to speak it, and of a sound's words."""

from omnistage.stages.qwen3_tts.talker_prompt import SpeechIds, SpokenText
from omnistage.stages.speech.text_tokens import TextTokenizer, TextTokens

ROLE = 3  # <|im_start|> assistant \n


class Qwen3TtsGivenText:
    """Makes token ids as the reference's chat forms have them.

    A special token's name is text like any other.
    """

    def __init__(self, folder: str, ids: SpeechIds) -> None:
        self._tokenizer = TextTokenizer(folder)
        self._ids = ids

    def spoken(self, text: str, instructions: str = "", reference: str = "") -> SpokenText:
        """Returns the tokens of the given text; `reference`: the words of audio to go on from."""
        turn = self._turn("assistant", text)
        return SpokenText(
            role=turn[:ROLE],
            text=turn[ROLE:],
            instructions=self._instructions(instructions) if instructions else (),
            reference=self._turn("assistant", reference)[ROLE:] if reference else (),
        )

    def coming(self) -> TextTokens:
        """The tokens of a text that comes behind a prompt without one."""
        return TextTokens(self._tokenizer)

    def _instructions(self, text: str) -> list[int]:
        return [*self._turn("user", text), self._ids.im_end, *self._tokenizer.tokens("\n")]

    def _turn(self, role: str, text: str) -> list[int]:
        """A turn of a chat without its end."""
        return [self._ids.im_start, *self._tokenizer.tokens(f"{role}\n{text}")]
