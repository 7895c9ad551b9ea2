"""The items of a response's input as the messages of a chat."""

import binascii
import mimetypes
from collections.abc import Sequence
from typing import Any

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.responses.places import Places
from omnistage.stage_configs.json_types import Json, JsonMap

Item = JsonMap
Message = Json

ROLES = ("user", "assistant", "system", "developer")
KINDS = ("message", "function_call", "function_call_output", "reasoning")
IMAGE_CALL = "image_generation_call"  # an image of ours, where images are made
# Known, and made by tools or services that are not here.
NOT_DONE = (
    *("item_reference", "computer_call", "computer_call_output", "file_search_call"),
    *("web_search_call", "code_interpreter_call", "local_shell_call"),
    *("local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call"),
    *("apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_call"),
    *("mcp_approval_response", "custom_tool_call", "custom_tool_call_output", "compaction"),
)
# Media types of files, and the parts of a chat that they are.
FILES = {"image": "image_url", "audio": "audio_url", "video": "video_url"}


def items_of(given: str | Sequence[Item]) -> Sequence[Item]:
    """An input as items: a string is one message of the user."""
    if not isinstance(given, str):
        return given
    content = [{"type": "input_text", "text": given}]
    return [{"type": "message", "role": "user", "content": content}]


class ConversationMessages:
    """Messages made of items one after the other, and where each came from.

    What the model said in one turn is one message: its thought, its words and its calls.
    """

    def __init__(self, instructions: str | None, places: Places, has_images: bool = False) -> None:
        self.messages: list[Message] = []
        self._has_images = has_images
        self._places = places
        self._thought = ""
        self._can_take_calls = False
        if instructions is not None:
            self._append({"role": "system", "content": instructions}, "instructions", whole=True)

    def add_all(self, items: Sequence[Item], place: str, is_listed: bool) -> None:
        """Add items that are at a place of the body: as a list of it, or behind it."""
        for number, item in enumerate(items):
            self._add(item, f"{place}[{number}]" if is_listed else place, whole=not is_listed)

    def _add(self, item: Item, place: str, whole: bool) -> None:
        kind = item.get("type") or "message"
        if kind == IMAGE_CALL and self._has_images:
            if not isinstance(item.get("result"), str | None):
                raise invalid(f"{place}.result", "must be a string")
            return  # the model does not see what was made of its words
        if kind in (*NOT_DONE, IMAGE_CALL):
            raise unsupported(f"{place}.type", f"{place}.type {kind!r}")
        if kind == "message":
            self._add_message(item, place, whole)
        elif kind == "function_call":
            self._add_call(item, place, whole)
        elif kind == "function_call_output":
            self._add_output(item, place, whole)
        elif kind == "reasoning":
            self._thought += _thought_of(item, place)
            self._can_take_calls = False
        else:
            allowed = ", ".join(KINDS)
            raise invalid(f"{place}.type", f"{kind!r} is unknown; allowed: {allowed}")

    def _add_message(self, item: Item, place: str, whole: bool) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise invalid(f"{place}.role", f"{role!r} is unknown; allowed: {', '.join(ROLES)}")
        content = self._content(item.get("content"), f"{place}.content", whole)
        message = {"role": role, "content": content}
        if role == "assistant":
            self._append({**message, **self._taken_thought()}, place, whole)
            self._can_take_calls = True
        else:
            self._append(message, place, whole)

    def _add_call(self, item: Item, place: str, whole: bool) -> None:
        for name in ("call_id", "name", "arguments"):
            if not isinstance(item.get(name), str):
                raise invalid(f"{place}.{name}", "must be a string")
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        if not self._can_take_calls:
            self._append({"role": "assistant", **self._taken_thought()}, place, whole)
            self._can_take_calls = True
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Item, place: str, whole: bool) -> None:
        if not isinstance(item.get("call_id"), str):
            raise invalid(f"{place}.call_id", "must be a string")
        content = self._content(item.get("output"), f"{place}.output", whole)
        number = len(self.messages)
        message = {"role": "tool", "tool_call_id": item["call_id"], "content": content}
        self._append(message, place, whole)
        if not whole:
            self._places.put(f"messages[{number}].content", f"{place}.output")

    def _append(self, message: Message, place: str, whole: bool) -> None:
        put = self._places.put_whole if whole else self._places.put
        put(f"messages[{len(self.messages)}]", place)
        self.messages.append(message)
        self._thought, self._can_take_calls = "", False

    def _taken_thought(self) -> Message:
        return {"reasoning": self._thought} if self._thought else {}

    def _content(self, content: object, place: str, whole: bool) -> object:
        if not isinstance(content, list):
            return content
        made = []
        for number, part in enumerate(content):
            path = f"{place}[{number}]"
            made.append(_part(part, path))
            if not whole and isinstance(part, dict) and part.get("type") == "input_file":
                self._places.put_whole(f"messages[{len(self.messages)}].content[{number}]", path)
        return made


def _thought_of(item: Item, place: str) -> str:
    """The words of a reasoning item: its content, or its summary where there is no more."""
    content = item.get("content") or item.get("summary") or []
    if not isinstance(content, list):
        raise invalid(f"{place}.content", "must be a list of parts")
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(f"{place}.content[{number}].text", "must be a string")
    return "".join(map(str, texts))


def _part(part: Any, path: str) -> Any:
    """A part as a chat has it; what is wrong with it is found there."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("input_image", "input_file"):
        return part
    if part.get("file_id") is not None:
        raise unsupported(f"{path}.file_id")
    return _file(part, path) if kind == "input_file" else part


def _file(part: Item, path: str) -> Message:
    """A file as the medium or the text that it is."""
    name = "file_data" if part.get("file_data") is not None else "file_url"
    url, place = part.get(name), f"{path}.{name}"
    if not isinstance(url, str):
        raise invalid(place, "must be a URL; file_data is one that begins with data:")
    media_type = _media_type(url, part.get("filename"))
    kind = FILES.get(media_type.partition("/")[0])
    if kind is not None:
        return {"type": kind, kind: {"url": url}}
    if media_type.startswith("text/") and url.startswith("data:"):
        return {"type": "text", "text": _text_in(url, place)}
    raise unsupported(place, f"{place} of type {media_type or 'unknown'!r}")


def _media_type(url: str, filename: object) -> str:
    """Returns what a data URL says of itself, else what the name of the file says."""
    if url.startswith("data:"):
        return url[len("data:") : 128].partition(",")[0].partition(";")[0].lower()
    name = filename if isinstance(filename, str) else url.partition("?")[0]
    return mimetypes.guess_type(name)[0] or ""


def _text_in(url: str, place: str) -> str:
    header, _, data = url.partition(",")
    if not header.endswith(";base64"):
        raise invalid(place, "must be a data URL with base64 data (data:…;base64,…)")
    try:
        return binascii.a2b_base64(data, strict_mode=True).decode()
    except ValueError as error:  # neither base64 nor UTF-8
        raise invalid(place, f"cannot be read: {error}") from error
