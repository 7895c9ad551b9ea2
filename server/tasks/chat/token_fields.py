"""The fields of POST /tokenize and /detokenize: vLLM's."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, WithJsonSchema

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.common.fields import Refused, RequestFields
from omnistage.server.tasks.chat.audio_history import AudioHistory
from omnistage.server.tasks.chat.fields import RENDERING
from omnistage.server.tasks.chat.media_options import (
    MediaOptions,
    ProcessorOptions,
    check_heard,
    media_options,
)
from omnistage.server.tasks.chat.message_schema import MESSAGES
from omnistage.server.tasks.chat.messages import checked_messages, unknown_keys
from omnistage.server.tasks.chat.schema import (
    MAX_MESSAGES,
    Options,
    TokenIds,
    Tools,
    at_most,
)
from omnistage.server.tasks.chat.tools import checked_tools
from omnistage.stage_configs.declared.sampling import Flag
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import Json, JsonMap

MAX_CHARACTERS = 1 << 20  # of all texts: a tokenizer has one thread for all requests
# Of a conversation alone; a prompt has no template.
OF_MESSAGES = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "tools",
)

OWN_FIELDS = ("model", "messages", "prompt", "mm_processor_kwargs", "media_io_kwargs")


class TokenizeRequest(RequestFields):
    """The body of POST /tokenize."""

    refused: ClassVar[Refused] = {"chat_template": ()}

    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[
            list[Json],
            Field(min_length=1, fail_fast=True),
            at_most(MAX_MESSAGES),
            WithJsonSchema(MESSAGES),
        ]
        | None
    ) = None
    add_special_tokens: Flag | None = None
    return_token_strs: Flag | None = None
    add_generation_prompt: Flag | None = None
    continue_final_message: Flag | None = None
    chat_template_kwargs: Options | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    media_io_kwargs: MediaOptions | None = None
    tools: Tools | None = None

    def check(self) -> None:
        """Raise ApiError for fields that ask for what is not done, or that do not go together."""
        super().check()
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "or messages must be given, and not both")
        for name in OF_MESSAGES:
            if self.prompt is not None and getattr(self, name) is not None:
                raise invalid(name, "has no effect on a prompt")
        for name in sorted(RENDERING & (self.chat_template_kwargs or {}).keys()):
            raise unsupported(f"chat_template_kwargs.{name}")
        if self.continue_final_message and self.add_generation_prompt is not False:
            raise invalid("add_generation_prompt", "must be false with continue_final_message")
        checked_tools(self.tools, None)

    def to_body(self, graph: StageGraph) -> dict[str, object]:
        """Returns what the entry stage gets; raises ApiError."""
        self.check()
        body = self.model_dump(exclude_none=True, exclude=set(OWN_FIELDS))
        if self.prompt is not None:
            _check_length(len(self.prompt), "prompt")
            return {**body, "prompt": self.prompt}
        messages = checked_messages(self.messages or (), AudioHistory(), graph.more_roles)
        _check_length(_num_characters(messages), "messages")
        body |= media_options(self.mm_processor_kwargs, self.media_io_kwargs, self.messages or ())
        body["messages"] = messages
        check_heard(body, graph)
        return body

    @property
    def unknown(self) -> list[str]:
        """Fields that nobody here knows, and such keys of messages."""
        return super().unknown + unknown_keys(self.messages or ())


class DetokenizeRequest(RequestFields):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


def _num_characters(messages: Sequence[JsonMap]) -> int:
    """Returns the characters of the texts of checked messages."""
    count = 0
    for message in messages:
        content = message.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        count += sum(len(part.get("text", "")) for part in parts)
        for call in message.get("tool_calls", ()):
            count += len(call["function"]["arguments"])
    return count


def _check_length(count: int, place: str) -> None:
    if count > MAX_CHARACTERS:
        raise invalid(place, f"has {count} characters; at most {MAX_CHARACTERS}")
