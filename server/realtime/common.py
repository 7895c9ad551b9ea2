"""State and services that the parts of a session share."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.http.protocol.socket_life import ConnectionTasks
from omnistage.server.http.state import RequestState
from omnistage.server.realtime.ahead.load import AheadLoad
from omnistage.server.realtime.chat_flow import ChatFlow
from omnistage.server.realtime.conversation import Conversation
from omnistage.server.realtime.items import Item
from omnistage.stage_configs.json_types import Json

NewAnswer = Callable[[], RequestState]  # makes the state of one answer
# Follows and counts an answer as a request of its own.
Followed = Callable[[RequestState], AbstractContextManager[RequestState]]


class Tell(Protocol):
    """Sends an event; one with a source may be withdrawn before it is on its way."""

    def __call__(self, event: Json, source: object = None) -> None:
        """Send it."""


@dataclass(frozen=True, slots=True)
class Common:
    """One session as its parts see it: its server, its client and its conversation."""

    flow: ChatFlow
    new_answer: NewAnswer
    followed: Followed
    ahead: AheadLoad
    outbox: Outbox
    tell: Tell
    tasks: ConnectionTasks
    conversation: Conversation
    conversation_id: str

    def tell_added(self, item: Item, previous: str | None) -> None:
        """Tell of an item that is whole as it comes."""
        for step in ("added", "done"):
            about = {"previous_item_id": previous, "item": item.to_json()}
            self.tell({"type": f"conversation.item.{step}", **about})
