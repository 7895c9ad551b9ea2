"""The settings of a session: fields and defaults."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator

from omnistage.server.realtime.audio_settings import (
    InputAudio,
    Options,
    SessionAudio,
    Transcription,
)
from omnistage.server.tasks.chat.schema import Tools
from omnistage.stage_configs.declared.sampling import Flag, Temperature
from omnistage.stage_configs.json_types import Json, JsonMap

Modality = Literal["text", "audio"]

MAX_INSTRUCTIONS = 256 << 10
MAX_TOKENS = 4096
LOGPROBS = "item.input_audio_transcription.logprobs"
RETAINED = 0.8
RETENTION = "retention_ratio"
Instructions = Annotated[str, Field(max_length=MAX_INSTRUCTIONS)]
NumTokens = Annotated[int | Literal["inf"], PlainValidator(lambda value: _num_tokens(value))]
Modalities = Annotated[list[Modality], Field(min_length=1, max_length=2)]


def _num_tokens(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value != "inf" and not (is_number and 1 <= value <= MAX_TOKENS):
        raise ValueError(f'must be "inf" or a number from 1 to {MAX_TOKENS}')
    return value


def _truncation(value: Any) -> Any:
    if value in ("auto", "disabled"):
        return value
    if not isinstance(value, dict) or value.get("type") != RETENTION:
        raise ValueError(f"must be auto, disabled or an object of type {RETENTION}")
    ratio, limits = value.get("retention_ratio"), value.get("token_limits")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise ValueError("retention_ratio must be a number from 0 to 1")
    if limits is not None:
        most = limits.get("post_instructions", 0) if isinstance(limits, dict) else -1
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise ValueError("token_limits.post_instructions must be a number of at least 0")
    return value


def words_or_object(*words: str) -> PlainValidator:
    """Make what takes one of these words, or any if none is given, or an object."""

    def check(value: Any) -> Any:
        is_word = isinstance(value, str) and (not words or value in words)
        if not is_word and not isinstance(value, dict):
            allowed = ", ".join(words) or "a string"
            raise ValueError(f"must be {allowed} or an object")
        return value

    return PlainValidator(check)


Choice = Annotated[str | Json, words_or_object()]
Truncation = Annotated[str | Json, PlainValidator(lambda value: _truncation(value))]
Tracing = Annotated[str | Json, words_or_object("auto")]


def spoken() -> list[Modality]:
    """Return the modalities of answers that are spoken."""
    return ["audio"]


class OptionsOfAnswers(Options):
    """The options of answers, of a session or of a single response."""

    tools: Tools = Field(default_factory=list)
    tool_choice: Choice = "auto"
    parallel_tool_calls: Flag | None = None
    max_output_tokens: NumTokens = "inf"
    temperature: Temperature | None = None  # beta's

    @field_validator("output_modalities", check_fields=False)
    @classmethod
    def _is_one(cls, modalities: list[Modality]) -> list[Modality]:
        """Take beta's ["audio", "text"] for audio: its words come with it."""
        return ["audio"] if "audio" in modalities else ["text"]


class RealtimeSettings(OptionsOfAnswers):
    """A session in which the model answers."""

    type: Literal["realtime"] = "realtime"
    model: str | None = None
    output_modalities: Modalities = Field(default_factory=spoken)
    instructions: Instructions = ""
    audio: SessionAudio = SessionAudio()
    truncation: Truncation = "auto"
    # OpenAI's own: taken without effect.
    tracing: Tracing | None = None
    include: list[str] | None = None
    prompt: Json | None = None
    reasoning: Json | None = None

    @property
    def retained(self) -> float | None:
        """Return the share of the tokens that is kept where they are too many; None: refused."""
        if isinstance(self.truncation, dict):
            return float(self.truncation["retention_ratio"])
        return RETAINED if self.truncation == "auto" else None

    @property
    def most_after_instructions(self) -> int | None:
        """Return how many tokens the items may have, if the client wants less than the model."""
        limits = self.truncation.get("token_limits") if isinstance(self.truncation, dict) else None
        return None if limits is None else limits.get("post_instructions")


class TranscriptionSettings(Options):
    """A session that only transcribes."""

    type: Literal["transcription"] = "transcription"
    audio: InputAudio = InputAudio()
    include: list[str] | None = None


Settings = RealtimeSettings | TranscriptionSettings


def transcription_of(settings: Settings) -> Transcription | None:
    """Return how what a user says is transcribed; None if it is not."""
    chosen = settings.audio.input.transcription
    if chosen is None and isinstance(settings, TranscriptionSettings):
        return Transcription()
    return chosen


class ResponseSettings(OptionsOfAnswers):
    """The options of a response.create beside its session's settings."""

    output_modalities: Modalities = Field(default_factory=spoken)
    instructions: Instructions = ""
    audio: SessionAudio = SessionAudio()
    conversation: Literal["auto", "none"] | str = "auto"
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(min_length=1, max_length=64)],
                Annotated[str, Field(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    input: list[Json] | None = None

    @property
    def chat_outputs(self) -> list[str]:
        """Return the outputs of the chat that it is."""
        return ["text", "audio"] if self.output_modalities == ["audio"] else ["text"]


def session_object(settings: Settings, session_id: str, model: str, expires_at: int) -> Json:
    """Return the effective session as clients read it, with every default."""
    is_realtime = isinstance(settings, RealtimeSettings)
    told = settings.model_dump(exclude={"model", "parallel_tool_calls", "temperature"})
    for audio in told["audio"].values():
        if audio["format"]["rate"] is None:
            del audio["format"]["rate"]
    transcription = told["audio"]["input"]["transcription"]
    if transcription is not None:
        told["audio"]["input"]["transcription"] = _without_null(transcription)
    for name in ("include", "reasoning"):
        if name in told and told[name] is None:
            del told[name]
    kind = "realtime.session" if is_realtime else "realtime.transcription_session"
    told |= {"id": session_id, "object": kind, "expires_at": expires_at}
    if is_realtime:
        told["model"] = model
        for name in ("parallel_tool_calls", "temperature"):
            if getattr(settings, name) is not None:
                told[name] = getattr(settings, name)
    return told


def _without_null(values: JsonMap) -> Json:
    return {name: value for name, value in values.items() if value is not None}
