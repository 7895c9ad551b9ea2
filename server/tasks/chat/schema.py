"""The fields of chats that have an effect; fields.py lists the others, checks.py checks them."""

from typing import Annotated, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
)
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from omnistage.server.common.fields import RequestFields
from omnistage.server.tasks.chat.fields import IGNORED, REFUSED
from omnistage.server.tasks.chat.media_options import MediaOptions, ProcessorOptions
from omnistage.server.tasks.chat.message_schema import MESSAGES
from omnistage.server.tasks.chat.messages import unknown_keys
from omnistage.stage_configs.declared.sampling import (
    Count,
    Flag,
    MinTokens,
    Number,
    NumTokens,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
)
from omnistage.stage_configs.json_types import Json

MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_BIASES = 4096
MAX_WORDS = 1024
MAX_WORD_CHARACTERS = 256
MAX_STOP_CHARACTERS = 1024
MAX_IDS = 1 << 18
MAX_MESSAGES = 1 << 14
MAX_TOOLS = 128
MAX_NAMES = 64

Penalty = Annotated[Number, Field(ge=-2, le=2)]
Bias = Annotated[Number, Field(ge=-100, le=100)]
TokenId = Annotated[Count, Field(ge=0, lt=1 << 31)]
TokenIdKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


def at_most(limit: int) -> BeforeValidator:
    """Refuses a list or an object by its length, before anyone looks at what is in it."""

    def counted(value: object) -> object:
        if isinstance(value, list | dict) and len(value) > limit:
            raise ValueError(f"has {len(value)} items; at most {limit}")
        return value

    return BeforeValidator(counted)


def _word(value: str) -> str:
    """vLLM before 0.32 fails on a word that makes no token."""
    if not value.strip():
        raise ValueError("must have more than white space")
    return value


Word = Annotated[str, Field(max_length=MAX_WORD_CHARACTERS), AfterValidator(_word)]
Words = Annotated[list[Word], Field(max_length=MAX_WORDS, fail_fast=True), at_most(MAX_WORDS)]
Biases = Annotated[dict[TokenIdKey, Bias], Field(max_length=MAX_BIASES), at_most(MAX_BIASES)]
TokenIds = Annotated[
    list[TokenId], Field(min_length=1, max_length=MAX_IDS, fail_fast=True), at_most(MAX_IDS)
]
StopIds = Annotated[list[TokenId], Field(max_length=MAX_WORDS, fail_fast=True), at_most(MAX_WORDS)]
Tools = Annotated[list[Json], at_most(MAX_TOOLS)]
Names = Annotated[list[str], at_most(MAX_NAMES)]
StageParams = Annotated[dict[str, Json], at_most(MAX_NAMES)]
Options = Annotated[Json, at_most(MAX_WORDS)]


class LoraChoice(TypedDict):
    """An adapter that was added, and how much of it."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's way

    name: Annotated[str, Field(min_length=1, max_length=128)]
    scale: NotRequired[Annotated[Number, Field(ge=-10, le=10)]]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _differ(loras: list[LoraChoice]) -> list[LoraChoice]:
    if len({one["name"] for one in loras}) != len(loras):
        raise ValueError("names an adapter twice")
    return loras


Loras = Annotated[
    list[LoraChoice],
    BeforeValidator(_as_list),
    AfterValidator(_differ),
    Field(min_length=1, max_length=8),
    at_most(8),
]


def _voice_name(voice: object) -> object:
    """OpenAI's SDK sends a voice as its name or as `{"id": name}`."""
    return voice["id"] if isinstance(voice, dict) and isinstance(voice.get("id"), str) else voice


Voice = Annotated[str, BeforeValidator(_voice_name)]


class AudioOptions(RequestFields):
    """How an answer is spoken and encoded."""

    voice: Voice | None = None
    format: str = "wav"


class StreamOptions(RequestFields):
    """The contents of a stream beside its deltas; `include_obfuscation` is known and ignored."""

    include_usage: Flag = False
    continuous_usage_stats: Flag = False
    include_obfuscation: Flag = False

    def of_stage(self) -> dict[str, bool]:
        """Returns the entry stage's: the usage so far in each chunk, or at the end."""
        is_running = self.include_usage and self.continuous_usage_stats
        return {"include_usage": True, **({"continuous_usage_stats": True} if is_running else {})}


class Sampling(RequestFields):
    """How a model answers, whatever it is asked: OpenAI's fields and vLLM's."""

    ignored = IGNORED

    model: str | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Count, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    min_tokens: MinTokens | None = None
    return_token_ids: Flag | None = None
    # The entry stage's serving class reads these itself, and refuses what it cannot use.
    response_format: Json | None = None
    structured_outputs: Json | None = None
    stop_token_ids: StopIds | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Words | None = None
    ignore_eos: Flag | None = None
    include_stop_str_in_output: Flag | None = None
    skip_special_tokens: Flag | None = None
    spaces_between_special_tokens: Flag | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None

    @field_validator("stop", mode="plain")
    @classmethod
    def _stops(cls, value: object) -> object:
        if value is None:
            return None
        stops = [value] if isinstance(value, str) else value
        if isinstance(stops, list) and len(stops) > MAX_STOPS:
            raise ValueError(f"has {len(stops)} strings; at most {MAX_STOPS}")
        if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
            raise ValueError("must be a string or a list of strings, none of them empty")
        longest = max(map(len, stops), default=0)
        if longest > MAX_STOP_CHARACTERS:
            raise ValueError(f"has {longest} characters; at most {MAX_STOP_CHARACTERS}")
        return value

    @property
    def has_usage(self) -> bool:
        """Returns whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(Sampling):
    """The body of POST /v1/chat/completions."""

    refused = REFUSED

    messages: Annotated[list[Json], at_most(MAX_MESSAGES), WithJsonSchema(MESSAGES)] = Field(
        min_length=1, fail_fast=True
    )
    modalities: Names | None = None
    audio: AudioOptions | None = None
    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[Count, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    stage_params: StageParams | None = None
    return_codes: Flag | None = None
    return_timeline: Flag | None = None
    # The entry stage's chat class reads these itself, and refuses what it cannot use.
    tools: Tools | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: Flag | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: Flag | None = None
    chat_template_kwargs: Options | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    media_io_kwargs: MediaOptions | None = None

    @property
    def has_words(self) -> bool:
        """Returns whether the answer's words are sent: of `["audio"]` alone they are made and
        spoken.
        """
        return self.modalities is None or "text" in self.modalities

    @property
    def unknown(self) -> list[str]:
        """Fields that nobody here knows, and such keys of messages."""
        return super().unknown + unknown_keys(self.messages)


DONE = frozenset(ChatRequest.model_fields)
