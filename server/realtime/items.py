"""Items of a conversation: as clients send them, as they read them, and as a chat has them."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.server.common.fields import RequestFields, parse
from omnistage.server.media.parts import bare_base64, checked_part, decoded
from omnistage.server.realtime.events import Id, new_id
from omnistage.server.realtime.playout import PlayedAnswer
from omnistage.server.realtime.voice.formats import UserAudio, sample_bytes
from omnistage.stage_configs.json_types import Json, JsonMap

Role = Literal["user", "assistant", "system"]
Status = Literal["completed", "incomplete", "in_progress"]

MAX_PARTS = 64
MAX_ECHOED = 64 << 10  # characters of an image's URL in the events of its item
OVERHEAD_BYTES = 512  # of an item beside its text and media
# Parts by the roles that may have them; beta's names first become today's.
PARTS: Mapping[str, tuple[str, ...]] = {
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
    "system": ("input_text",),
}
BETA_PARTS = {"text": "output_text", "audio": "output_audio"}
MCP = ("mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools")


class PartFields(RequestFields):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class MessageFields(RequestFields):
    """A message."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    role: Role
    status: Status | None = None
    content: Annotated[list[PartFields], Field(max_length=MAX_PARTS)] = Field(default_factory=list)


class CallFields(RequestFields):
    """A call of a function, as a client replays it."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    call_id: Id | None = None
    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: str


class OutputFields(RequestFields):
    """The fields of a function's return value."""

    model_config = ConfigDict(extra="ignore")

    id: Id | None = None
    call_id: Id
    output: str


@dataclass(slots=True)
class Part:
    """A part of a message: a text, audio of a user, words and audio of the model, or an image.

    `image` is a chat's part, and is as it was checked when the item came.
    """

    type: str
    text: str | None = None
    sound: UserAudio | None = None
    transcript: str | None = None
    spoken: PlayedAnswer | None = None
    image: Json | None = None
    image_url: str | None = None
    detail: str | None = None

    def to_json(self, has_media: bool = False, is_sent: bool = False) -> Json:
        """Return it as clients read it; a user's audio always has a transcript, if only null.

        `is_sent`: an answer as it was sent, though less of it was heard.
        """
        if self.type == "input_image":
            told: Json = {"type": self.type}
            if self.image_url is not None and (has_media or len(self.image_url) <= MAX_ECHOED):
                told["image_url"] = self.image_url
            return told if self.detail is None else {**told, "detail": self.detail}
        if self.type == "output_audio":
            return {"type": self.type, "transcript": self.sent_words if is_sent else self.words}
        if self.type != "input_audio":
            return {"type": self.type, "text": self.text or ""}
        told = {"type": self.type, "transcript": self.transcript}
        if has_media and self.sound is not None:
            told["audio"] = base64.b64encode(self.sound.data).decode("ascii")
        return told

    @property
    def words(self) -> str:
        """Return its text, or what was said."""
        if self.spoken is not None:
            return self.spoken.words
        return self.text or self.transcript or ""

    @property
    def sent_words(self) -> str:
        """Return its words, with those that were sent and not heard."""
        return self.words if self.spoken is None else self.spoken.sent_words

    def to_chat(self, hears: bool) -> Json | None:
        """Return it as a chat's part; None if there is nothing in it.

        `hears`: the model takes audio; another gets what was said.
        """
        if self.image is not None:
            return {"type": "image_url", "image_url": dict(self.image["image_url"])}
        if hears and self.sound is not None and self.sound.data:
            return {"type": "input_audio", "input_audio": self.sound.raw}
        return {"type": "text", "text": self.words} if self.words else None

    @property
    def num_bytes(self) -> int:
        """How much memory it takes, about."""
        size = len(self.text or "") + len(self.transcript or "") + len(self.image_url or "")
        if self.image is not None:
            size += len(self.image["image_url"]["url"])
        if self.sound is not None:
            size += len(self.sound.data)
        return size + (0 if self.spoken is None else len(self.spoken.words))


@dataclass(slots=True)
class Item:
    """A message, a call of a function, or what that returned."""

    id: str
    type: Literal["message", "function_call", "function_call_output"] = "message"
    status: Status = "completed"
    role: Role = "user"
    content: list[Part] = field(default_factory=list)
    call_id: str = ""
    name: str = ""
    text: str = ""  # arguments of a call, or its output

    def to_json(self, has_media: bool = False, is_sent: bool = False) -> Json:
        """Return it as clients read it.

        `is_sent`: an answer as it was sent, though less of it was heard.
        """
        is_cut = not is_sent and self.status == "completed" and self.is_cut
        status = "incomplete" if is_cut else self.status
        head = {"id": self.id, "object": "realtime.item", "type": self.type, "status": status}
        if self.type == "message":
            content = [part.to_json(has_media, is_sent) for part in self.content]
            return {**head, "role": self.role, "content": content}
        if self.type == "function_call":
            call = {"call_id": self.call_id, "name": self.name, "arguments": self.text}
            return {**head, **call}
        return {**head, "call_id": self.call_id, "output": self.text}

    def to_chat(self, hears: bool) -> Json | None:
        """Return it as an item of a response's input; None if there is nothing in it.

        `hears`: as for its parts.
        """
        if self.type == "function_call":
            if self.status != "completed":  # its arguments are cut
                return None
            call = {"call_id": self.call_id, "name": self.name, "arguments": _object(self.text)}
            return {"type": self.type, **call}
        if self.type == "function_call_output":
            return {"type": self.type, "call_id": self.call_id, "output": self.text}
        content = [made for part in self.content if (made := part.to_chat(hears)) is not None]
        if not content:
            return None
        return {"type": "message", "role": self.role, "content": content}

    @property
    def revision(self) -> tuple[Any, ...]:
        """Return what differs from it as it was, once a chat has it otherwise."""
        parts = [len(one.sound.data) if one.sound else one.words for one in self.content]
        return self.id, self.status, self.text, *parts

    @property
    def num_bytes(self) -> int:
        """How much memory it takes, about."""
        return OVERHEAD_BYTES + len(self.text) + sum(part.num_bytes for part in self.content)

    @property
    def spoken(self) -> PlayedAnswer | None:
        """Return the audio of an answer, if it is one."""
        return next((part.spoken for part in self.content if part.spoken is not None), None)

    @property
    def is_cut(self) -> bool:
        """Returns whether it is an answer of which some was not heard."""
        return self.spoken is not None and self.spoken.is_cut

    @property
    def sounds(self) -> list[UserAudio]:
        """Return the audio of a user."""
        return [part.sound for part in self.content if part.sound is not None]

    @property
    def sound(self) -> UserAudio | None:
        """Return the first audio of a user, if there is some."""
        return next(iter(self.sounds), None)


def _object(arguments: str) -> str:
    """Return the arguments of a call; none if they are no JSON object, which no chat takes."""
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else "{}"


def item_of(given: JsonMap, form: str, place: str = "item") -> Item:
    """Return a client's item, whose audio is in a format; raises ApiError. Images are not read."""
    kind = given.get("type", "message")
    known = {name: value for name, value in given.items() if value is not None}
    if kind in MCP:
        raise unsupported(f"{place}.type", f"{place}.type {kind!r}")
    if kind == "message":
        message = parse(MessageFields, known, place)
        content = [
            _part(part, message.role, form, f"{place}.content[{number}]")
            for number, part in enumerate(message.content)
        ]
        status: Status = "incomplete" if message.status == "incomplete" else "completed"
        item_id = message.id or new_id("item")
        return Item(item_id, "message", status, message.role, content)
    if kind == "function_call":
        call = parse(CallFields, known, place)
        call_id = call.call_id or new_id("call")
        item_id = call.id or new_id("item")
        return Item(item_id, kind, call_id=call_id, name=call.name, text=call.arguments)
    if kind == "function_call_output":
        output = parse(OutputFields, known, place)
        return Item(output.id or new_id("item"), kind, call_id=output.call_id, text=output.output)
    allowed = "message, function_call, function_call_output"
    raise invalid(f"{place}.type", f"{str(kind)[:64]!r} is unknown; allowed: {allowed}")


def _part(part: PartFields, role: str, form: str, place: str) -> Part:
    kind = BETA_PARTS.get(part.type, part.type) if role == "assistant" else part.type
    if kind not in PARTS[role]:
        allowed = ", ".join(PARTS[role])
        raise invalid(f"{place}.type", f"{part.type[:64]!r} is not a {role}'s; allowed: {allowed}")
    if kind == "input_audio":
        return Part(kind, sound=_sound(part, form, place), transcript=part.transcript)
    if kind == "output_audio":
        return Part(kind, transcript=part.transcript or "")
    if kind == "input_image":
        image = checked_part({"type": "input_image", "image_url": part.image_url}, place)
        image = {"type": "image_url", "image_url": image["image_url"]}
        return Part(kind, image=image, image_url=part.image_url, detail=part.detail)
    if part.text is None:
        raise invalid(f"{place}.text", "must be a string")
    return Part(kind, text=part.text)


def _sound(part: PartFields, form: str, place: str) -> UserAudio:
    instead = "the audio itself is sent"
    data = decoded(bare_base64(part.audio, f"{place}.audio", instead), f"{place}.audio")
    if not data or len(data) % sample_bytes(form):
        raise invalid(f"{place}.audio", f"must have whole samples of {sample_bytes(form)} bytes")
    return UserAudio(data, form)


def not_found(verb: str, code: str, item_id: str) -> ApiError:
    """Return the refusal of an item that is not there."""
    message = f"Error {verb} item: the item with id '{item_id}' does not exist."
    return ApiError(400, message, param="item_id", code=code)
