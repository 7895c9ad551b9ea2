"""The fields of POST /v1/responses that have an effect; those of sampling are a chat's."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, field_validator

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import Refused, RequestFields, refuse
from omnistage.server.tasks.chat.fields import OF_CHATS, REFUSED
from omnistage.server.tasks.chat.grammar import check_structured_outputs
from omnistage.server.tasks.chat.media_options import MediaOptions, ProcessorOptions
from omnistage.server.tasks.chat.message_schema import AUDIO, TEXT, Schema
from omnistage.server.tasks.chat.schema import (
    MAX_MESSAGES,
    MAX_TOP_LOGPROBS,
    Options,
    Sampling,
    StageParams,
    Tools,
    at_most,
)
from omnistage.stage_configs.declared.sampling import Count, Flag, NumTokens
from omnistage.stage_configs.json_types import Json


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _const(value: str) -> dict[str, object]:
    return {"const": value}


URL: Schema = {"type": "string", "format": "uri", "description": "data, http, https or file"}
PARTS: list[Schema] = [
    _object({"type": _const("input_text"), "text": TEXT}),
    _object({"type": _const("output_text"), "text": TEXT}),
    _object({"type": _const("input_image"), "image_url": URL}),
    _object({"type": _const("input_audio"), "input_audio": AUDIO}),
    _object({"type": _const("input_file")}, {"file_data": URL, "file_url": URL, "filename": TEXT}),
]
CONTENT: Schema = {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": PARTS}}]}
ROLE: Schema = {"enum": ["user", "assistant", "system", "developer"]}
ITEMS: list[Schema] = [
    _object({"role": ROLE, "content": CONTENT}, {"type": _const("message")}),
    _object({"type": _const("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
    _object({"type": _const("function_call_output"), "call_id": TEXT, "output": CONTENT}),
    _object({"type": _const("reasoning")}, {"content": {"type": "array"}}),
]
INPUT: Schema = {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"anyOf": ITEMS}}]}


MAX_PAIRS = 16
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]
LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
# Of OpenAI's fields those whose meaning is its own service's.
WITHOUT_EFFECT = frozenset(
    {
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
NOT_DONE: Refused = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "enable_response_messages": (False,),
    "image": (),
    "max_tool_calls": (),
    "prediction": (),
    "prompt": (),
    "verbosity": (),
    "web_search_options": (),
}
# Sampling's that a response has no place for, or that `text` and `max_output_tokens` replace.
NOT_HERE: Refused = {
    "n": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
}

Key = Annotated[str, Field(min_length=1, max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class ReasoningOptions(RequestFields):
    """How long the model thinks; a summary of it has no effect: all that it thinks is shown."""

    ignored = frozenset({"context", "generate_summary", "mode"})

    effort: Effort | None = None
    summary: Summary | None = None


class TextOptions(RequestFields):
    """The format of the text."""

    ignored = frozenset({"verbosity"})

    format: Json | None = None


class ResponseRequest(Sampling):
    """The body of POST /v1/responses."""

    ignored = WITHOUT_EFFECT
    # What is a chat's alone would have no effect here.
    refused: ClassVar[Refused] = {**OF_CHATS, **REFUSED, **NOT_DONE}

    input: Annotated[str | list[Json], WithJsonSchema(INPUT)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    store: Flag | None = None
    metadata: Annotated[dict[Key, Value], at_most(MAX_PAIRS)] | None = None
    max_output_tokens: NumTokens | None = None
    tools: Tools | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: Flag | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Include], at_most(16)] | None = None
    top_logprobs: Annotated[Count, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    # As a chat's.
    stage_params: StageParams | None = None
    chat_template_kwargs: Options | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    media_io_kwargs: MediaOptions | None = None

    @field_validator("input", mode="plain")
    @classmethod
    def _items(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        if not isinstance(value, str) and not (is_list and 1 <= len(value) <= MAX_MESSAGES):
            raise ValueError(f"must be a text or a list of 1 to {MAX_MESSAGES} items, objects")
        return value

    @property
    def has_logprobs(self) -> bool:
        """Returns whether the text is to come with its log probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def is_kept(self) -> bool:
        """Returns whether it can be asked for afterwards."""
        return self.store is not False

    def check(self) -> None:
        """Raise ApiError for fields that ask for what is not done, or that do not go together."""
        super().check()
        refuse({name: getattr(self, name) for name in NOT_HERE}, NOT_HERE)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "is only allowed when stream is true")
        if self.top_logprobs and not self.has_logprobs:
            raise invalid("top_logprobs", f"needs {LOGPROBS} in include")
        if self.structured_outputs is not None:
            check_structured_outputs(self.structured_outputs)


def format_of(asked: ResponseRequest) -> Mapping[str, object]:
    """`text.format`, or OpenAI's default."""
    given = asked.text.format if asked.text is not None else None
    return {"type": "text"} if given is None else given
