"""Turns a response's fields into a chat's, and refuses what has no meaning in one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omnistage.server.common.errors import fields_named, invalid, unsupported
from omnistage.server.common.fields import parse
from omnistage.server.responses.image_tool import KIND
from omnistage.server.responses.items import ConversationMessages, Item, Message, items_of
from omnistage.server.responses.places import Places
from omnistage.server.responses.schema import NOT_HERE, ResponseRequest, format_of
from omnistage.server.tasks.chat.schema import ChatRequest, Sampling
from omnistage.stage_configs.json_types import JsonMap

# Read here, or by the endpoint; the other fields of sampling are the chat's as they are.
OWN_FIELDS = frozenset({"stream", "stream_options", *NOT_HERE})
SENT_ON = frozenset(Sampling.model_fields) - OWN_FIELDS
ALSO_SENT_ON = frozenset(
    {"stage_params", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs"}
)
FORMATS = ("text", "json_object", "json_schema")
# Tools that OpenAI runs itself.
BUILT_IN = ("file_search", "web_search", "computer", "code_interpreter", "image_generation", "mcp")


def chat_of(
    asked: ResponseRequest,
    before: Sequence[Item],
    places: Places,
    has_images: bool,
    image_fields: Mapping[str, object] | None,
) -> ChatRequest:
    """The chat that a response is, behind items of earlier ones; raises ApiError.

    `has_images`: the model draws what it writes, and so takes the tool image_generation.
    `image_fields`: what is said of the image of this answer, None if it is to have none.
    """
    asked.check()
    messages = messages_of(asked, before, places, has_images)
    drawn = {} if image_fields is None else {**image_fields, "modalities": ["text", "image"]}
    with fields_named(places.own):
        return parse(ChatRequest, {**_fields(asked, has_images), **drawn, "messages": messages})


def messages_of(
    asked: ResponseRequest, before: Sequence[Item], places: Places, has_images: bool
) -> list[Message]:
    """The messages of a chat that its items are; raises ApiError."""
    conversation = ConversationMessages(asked.instructions, places, has_images)
    conversation.add_all(before, "previous_response_id", is_listed=False)
    is_listed = not isinstance(asked.input, str)
    conversation.add_all(items_of(asked.input), "input", is_listed)
    return conversation.messages


def _fields(asked: ResponseRequest, has_images: bool) -> dict[str, object]:
    """All but the messages; what was left out stays out."""
    fields = asked.model_dump(exclude_none=True, include=set(SENT_ON | ALSO_SENT_ON))
    found: Mapping[str, object] = {
        "max_completion_tokens": asked.max_output_tokens,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "reasoning_effort": None if asked.reasoning is None else asked.reasoning.effort,
        "logprobs": asked.has_logprobs or None,
        "top_logprobs": asked.top_logprobs or None,
        "response_format": _format(asked),
        **_tools(asked, has_images),
    }
    return fields | {name: value for name, value in found.items() if value is not None}


def _format(asked: ResponseRequest) -> Mapping[str, object] | None:
    given = format_of(asked)
    kind = given.get("type")
    if kind not in FORMATS:
        message = f"{kind!r} is unknown; allowed: {', '.join(FORMATS)}"
        raise invalid("text.format.type", message)
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    described = {key: value for key, value in given.items() if key != "type"}
    return {"type": "json_schema", "json_schema": described}


def _tools(asked: ResponseRequest, has_images: bool) -> Mapping[str, object]:
    """The functions, and which are called; an image is no call of the chat's."""
    given, choice = list(enumerate(asked.tools or ())), asked.tool_choice
    tools = [one for one in given if not (has_images and one[1].get("type") == KIND)]
    if len(tools) < len(given):
        choice = "none" if choice == {"type": KIND} else choice
        choice = None if choice == "required" and not tools else choice
    return chat_tools(tools, choice)


def chat_tools(tools: Iterable[tuple[int, Any]], choice: Any) -> Mapping[str, object]:
    """Return flat tools with their places, and a choice of them, as a chat's fields; ApiError."""
    chat = [_tool(tool, f"tools[{number}]") for number, tool in tools]
    if not chat:
        return {} if choice in (None, "auto", "none") else {"tool_choice": choice}
    return {"tools": chat, "tool_choice": _choice(choice)}


def _tool(tool: Mapping[str, object], place: str) -> Mapping[str, object]:
    """A function as a chat describes it."""
    _check_function(tool, place)
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _choice(choice: object) -> object:
    """A choice of tools as a chat says it."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _named(choice, "tool_choice")
    given = choice.get("tools")
    tools = given if isinstance(given, list) else []
    named = [_named(one, f"tool_choice.tools[{number}]") for number, one in enumerate(tools)]
    allowed = {"mode": choice.get("mode"), "tools": named}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _named(tool: Any, place: str) -> JsonMap:
    _check_function(tool, place)
    return {"type": "function", "function": {"name": tool.get("name")}}


def _check_function(tool: object, place: str) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "custom" or (isinstance(kind, str) and kind.startswith(BUILT_IN)):
        raise unsupported(f"{place}.type", f"{place}.type {kind!r}")
    if kind != "function":
        raise invalid(f"{place}.type", "must be function")
