"""The fields of a voice that is to be stored."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from omnistage.server.common.fields import Refused, RequestFields
from omnistage.server.tasks.speech.speech_fields import MAX_REF_TEXT, Spoken

MAX_FILE_BYTES = 10 << 20
MAX_NAME = 100
MAX_CONSENT = 1000


def _printable(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError("must be printable, without spaces around it")
    return name


class VoiceRequest(RequestFields):
    """OpenAI's fields, and `ref_text`: what is said in the sound."""

    # A form may send them empty.
    refused: ClassVar[Refused] = {"speaker_embedding": ("",), "prompt": ("",)}

    type: Literal["audio_sample"] = "audio_sample"
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_printable)]
    audio_sample: Annotated[
        bytes,
        Field(min_length=1, max_length=MAX_FILE_BYTES),
        WithJsonSchema({"type": "string", "format": "binary"}),
    ]
    consent: Annotated[str, Field(min_length=1, max_length=MAX_CONSENT)]
    ref_text: Annotated[str, Field(min_length=1, max_length=MAX_REF_TEXT), Spoken] | None = None
