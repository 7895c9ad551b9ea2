"""What a chat completion request may say; fields of vLLM's that are not here pass through."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MIN_SEED, MAX_SEED = -(1 << 63), (1 << 63) - 1

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=1 << 31)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seed = Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)]
NumTokens = Annotated[int, Field(ge=1, le=1 << 31)]
MinTokens = Annotated[int, Field(ge=0, le=1 << 31)]


def _voice_name(voice: Any) -> Any:
    """OpenAI's SDK sends a voice as its name or as `{"id": name}`."""
    return voice["id"] if isinstance(voice, dict) and isinstance(voice.get("id"), str) else voice


class AudioOptions(BaseModel):
    """How an answer is spoken and encoded."""

    voice: Annotated[str, BeforeValidator(_voice_name)] | None = None
    format: str = "wav"


class StreamOptions(BaseModel):
    """What a stream contains beside its deltas."""

    include_usage: bool = False


class StageParameters(BaseModel):
    """Sampling of one stage; wins over the request's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    max_tokens: NumTokens | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> "StageParameters":
        if None not in (self.min_tokens, self.max_tokens) and self.min_tokens > self.max_tokens:  # type: ignore[operator]
            raise ValueError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        return self


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    modalities: list[str] | None = None
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Seed | None = None
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    min_tokens: MinTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stage_params: dict[str, dict[str, Any]] | None = None
    return_codes: bool | None = None
    return_token_ids: bool | None = None
