"""The shapes of JSON answers, for the API's description."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from omnistage.stage_configs.json_types import Json


class Model(TypedDict):
    """A model that is served: what its graph makes, and in `note` what the graph leaves out.

    `chat_modalities`: what its chats are answered with, where other parts of the graph make more.

    `chat_only_modalities`: images or videos of what the model writes, which other endpoints refuse.

    `root` and `parent` are a LoRA adapter's: its folder and its model.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    output_modalities: list[Literal["text", "audio", "transcript", "image", "video", "embedding"]]
    chat_only_modalities: NotRequired[list[str]]
    chat_modalities: NotRequired[list[str]]
    max_model_len: NotRequired[int | None]
    note: NotRequired[str]
    root: NotRequired[str]
    parent: NotRequired[str]


class ModelList(TypedDict):
    """The models and adapters that are served."""

    object: Literal["list"]
    data: list[Model]


Lists = dict[str, list[Any]]


class StoredVoice(TypedDict):
    """A voice that was made from a sound."""

    object: Literal["audio.voice"]
    id: str
    name: str
    created_at: int
    type: Literal["audio_sample"]


class DeletedVoice(TypedDict):
    """One that is no longer there."""

    object: Literal["audio.voice.deleted"]
    id: str
    deleted: Literal[True]


class SpokenMessage(TypedDict):
    """`message.audio`: base64 in the format that was asked for."""

    id: str
    data: str
    expires_at: int
    transcript: str
    codes: NotRequired[list[list[int]]]


class AssistantMessage(TypedDict):
    """The model's answer; with audio its text is the transcript."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[Any]
    audio: NotRequired[SpokenMessage]
    images: NotRequired[list[Json]]
    tool_calls: NotRequired[list[Json]]
    reasoning: NotRequired[str]


class ChatChoice(TypedDict):
    """One of the answers."""

    index: int
    message: AssistantMessage
    logprobs: Json | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
    stop_reason: str | int | None


class ResponseAnswer(TypedDict):
    """A response; streamed, it is events whose last ones have it whole."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    model: str
    output: list[Json]
    error: Json | None
    incomplete_details: Json | None
    metadata: dict[str, str]
    usage: NotRequired[Json]


class DeletedResponse(TypedDict):
    """A response that is not there any more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseItems(TypedDict):
    """A page of the items that a model read."""

    object: Literal["list"]
    data: list[Json]
    has_more: bool
    first_id: str
    last_id: str


class EmbeddingItem(TypedDict):
    """The vector of one input: numbers, or their bytes as base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """How many tokens went in."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """The vectors of all inputs, in their order."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class TokensAnswer(TypedDict):
    """The tokens of a prompt, and how many the model takes."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TextOfTokens(TypedDict):
    """The text of tokens."""

    prompt: str


class CompletionUsage(TypedDict):
    """How many tokens went in and came out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(TypedDict):
    """A whole answer; streamed, it is events of `chat.completion.chunk`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage


class TextAnswer(TypedDict):
    """The transcript of an audio file."""

    text: str


class TextChoice(TypedDict):
    """One of the texts."""

    index: int
    text: str
    finish_reason: str | None
    stop_reason: str | int | None


class TextCompletion(TypedDict):
    """A text that goes on; streamed, it is events of the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage
