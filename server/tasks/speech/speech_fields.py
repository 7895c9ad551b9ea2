"""The fields of a text that is to be spoken."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from omnistage.server.common.fields import Refused, RequestFields
from omnistage.server.media.audio.time_stretch import MAX_SPEED, MIN_SPEED
from omnistage.server.tasks.chat.schema import StageParams, Voice
from omnistage.server.tasks.speech.choice import Asked, Task
from omnistage.server.tasks.speech.coming import NOTHING_SAID
from omnistage.server.tasks.speech.pieces import is_blank
from omnistage.stage_configs.declared.sampling import Flag, Number, Seed

MAX_TEXT = 100_000
MAX_INSTRUCTIONS = 4096
MAX_REF_TEXT = 4096
MAX_WORD = 64


def _spoken(text: str) -> str:
    if is_blank(text):
        raise ValueError(NOTHING_SAID)
    return text


Spoken = AfterValidator(_spoken)


class SpeechRequest(RequestFields):
    """OpenAI's fields, and below them ours."""

    ignored = frozenset({"stream", "user"})  # `stream` is other servers': this one always does

    refused: ClassVar[Refused] = {"speaker_embedding": ()}

    input: Annotated[str, Field(min_length=1, max_length=MAX_TEXT), Spoken]
    model: str | None = None
    voice: Voice | None = None
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)] | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[Number, Field(ge=MIN_SPEED, le=MAX_SPEED)] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    seed: Seed | None = None
    stage_params: StageParams | None = None
    return_codes: Flag | None = None
    # Beside our own, what vllm-omni calls the voice of a sound and how it is spoken.
    ref_audio: str | None = None
    ref_text: Annotated[str, Field(min_length=1, max_length=MAX_REF_TEXT), Spoken] | None = None
    language: Annotated[str, Field(max_length=MAX_WORD)] | None = None
    task_type: Task | None = None
    x_vector_only_mode: Flag | None = None

    @property
    def asked_voice(self) -> Asked:
        """Returns what it says of its voice."""
        return Asked(self.voice, self.ref_audio, self.ref_text, self.x_vector_only_mode)
