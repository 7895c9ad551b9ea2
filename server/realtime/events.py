"""The events that a client sends, checked; and the ids of what is told."""

import secrets
import string
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.common.fields import RequestFields, parse
from omnistage.stage_configs.declared.sampling import Count
from omnistage.stage_configs.json_types import Json, JsonMap

ALPHABET = string.ascii_letters + string.digits
LENGTH = 21

Id = Annotated[str, Field(min_length=1, max_length=128)]
Index = Annotated[Count, Field(ge=0, le=1 << 31)]


class ClientEvent(RequestFields):
    """An event of a client; unknown fields have no effect."""


class SessionUpdate(ClientEvent):
    """Changes fields of the session; `transcription_session.update` is beta's."""

    session: Json


class AudioAppend(ClientEvent):
    """Adds audio to the input buffer: base64 of whole samples in the session's format."""

    audio: str


class AudioCommit(ClientEvent):
    """Makes an item of the input buffer."""


class AudioClear(ClientEvent):
    """Empties the input buffer."""


class OutputClear(ClientEvent):
    """Stops what WebRTC plays."""


class ItemCreate(ClientEvent):
    """Adds an item behind another: the last, or `root` for the first place."""

    item: Json
    previous_item_id: Id | None = None


class ItemRetrieve(ClientEvent):
    """Asks for an item, with the user's audio."""

    item_id: Id


class ItemDelete(ClientEvent):
    """Removes an item."""

    item_id: Id


class ItemTruncate(ClientEvent):
    """Shortens an answer to the audio that was heard, in milliseconds."""

    item_id: Id
    content_index: Index
    audio_end_ms: Index


class ResponseCreate(ClientEvent):
    """Has the model answer."""

    response: Json | None = None


class ResponseCancel(ClientEvent):
    """Ends a response; without an id that of the conversation."""

    response_id: Id | None = None


EVENTS: Mapping[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "transcription_session.update": SessionUpdate,
    "input_audio_buffer.append": AudioAppend,
    "input_audio_buffer.commit": AudioCommit,
    "input_audio_buffer.clear": AudioClear,
    "output_audio_buffer.clear": OutputClear,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}


def client_event(given: JsonMap) -> ClientEvent:
    """Return a client's event as what it is; raises ApiError."""
    kind = given.get("type")
    if not isinstance(kind, str):
        message = "An event must have a type, a string."
        raise ApiError(400, message, param="type", code="invalid_event")
    if kind not in EVENTS:
        raise invalid("type", f"{kind[:64]!r} is unknown; allowed: {', '.join(EVENTS)}")
    return parse(EVENTS[kind], given)


def new_id(kind: str) -> str:
    """Make an unguessable id such as `item_…`; it has at most 32 characters.

    LiveKit shortens longer ones in what it sends back.
    """
    return f"{kind}_{''.join(secrets.choice(ALPHABET) for _ in range(LENGTH))}"
