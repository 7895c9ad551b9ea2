"""What can be asked about a text that is to be spoken."""

from typing import Annotated, Literal

from pydantic import Field

from omnistage.server.audio.time_stretch import MAX_SPEED, MIN_SPEED
from omnistage.server.chat.schema import StageParams, Voice
from omnistage.server.http.fields import RequestFields
from omnistage.stage_configs.sampling import Number, Seed

MAX_TEXT = 4096


class SpeechRequest(RequestFields):
    """OpenAI's fields, and below them ours."""

    ignored = frozenset({"stream", "user"})  # `stream` is other servers': this one always does

    input: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    model: str | None = None
    voice: Voice | None = None
    instructions: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[Number, Field(ge=MIN_SPEED, le=MAX_SPEED)] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    seed: Seed | None = None
    stage_params: StageParams | None = None
