"""The fields of a WebSocket on which a text is spoken while it comes."""

from typing import ClassVar, Literal

from omnistage.server.common.fields import Refused
from omnistage.server.tasks.speech.speech_fields import SpeechRequest


class SessionConfig(SpeechRequest):
    """The fields of /v1/audio/speech for the answers that follow; the text comes apart.

    `stream_audio` and `split_granularity` are vllm-omni's: here sound is always streamed, and a
    text is not split where the model takes it as it comes.
    """

    ignored = SpeechRequest.ignored | {"type", "stream_audio", "split_granularity"}
    refused: ClassVar[Refused] = {**SpeechRequest.refused, "word_timestamps": (False,)}

    input: Literal[""] = ""
    stream_format: Literal["audio"] | None = None
    audio_encoding: Literal["binary", "base64"] = "binary"
