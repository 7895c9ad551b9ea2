"""One text that is spoken while it comes, among those of a WebSocket."""

from dataclasses import dataclass, field

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.inputs import TextInput
from omnistage.server.tasks.speech.choice import VoiceChoice
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.speech_fields import SpeechRequest


@dataclass(frozen=True, slots=True)
class Voice:
    """How the texts of a session are spoken, until it says something else."""

    config: SpeechRequest
    is_binary: bool  # whether its client gets audio as bytes, not as base64
    choice: VoiceChoice
    reference: Reference | None
    takes_pieces: bool
    max_text: int  # how many characters one request may have


@dataclass(slots=True)
class Utterance:
    """The text between two `input.done`; it is over once its client has got its end."""

    number: int
    voice: Voice
    text: TextInput = field(default_factory=TextInput)
    num_characters: int = 0
    is_over: bool = False

    def add(self, text: str, max_characters: int) -> None:
        """The next piece; ApiError if it is too much."""
        self.num_characters += len(text)
        if self.num_characters > max_characters:
            message = f"The text has more than {max_characters} characters."
            raise ApiError(400, message, param="text", code="text_too_long")
        self.text.add(text)
