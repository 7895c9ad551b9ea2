"""A session: takes a client's events, one after the other, and tells the server's."""

import time
from dataclasses import dataclass
from typing import Any

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.http.protocol.socket_life import ConnectionTasks
from omnistage.server.options.bounds import DEFAULT_BOUNDS, SessionBounds
from omnistage.server.realtime import events
from omnistage.server.realtime.ahead.load import AheadLoad
from omnistage.server.realtime.answering.answers import Answers
from omnistage.server.realtime.beta import beta_event, without_flat
from omnistage.server.realtime.chat_flow import ChatFlow
from omnistage.server.realtime.common import Common, Followed, NewAnswer
from omnistage.server.realtime.conversation import MAX_ITEMS, Conversation
from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.hearing import Judge, MakeDetector
from omnistage.server.realtime.items import Item, item_of
from omnistage.server.realtime.listener import Listener
from omnistage.server.realtime.settings import Settings, session_object
from omnistage.server.realtime.starting import check_settings
from omnistage.server.realtime.transcripts import Transcripts
from omnistage.server.realtime.updates import updated
from omnistage.server.tasks.transcription import check_hears
from omnistage.stage_configs.json_types import Json, JsonMap


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of its server that a session needs."""

    flow: ChatFlow
    new_answer: NewAnswer
    followed: Followed
    ahead: AheadLoad
    make_detector: MakeDetector
    bounds: SessionBounds = DEFAULT_BOUNDS
    judge: Judge | None = None  # of semantic_vad


class RealtimeSession:
    """One session; `handle` takes an event, and answers go on beside it, in `tasks`."""

    def __init__(
        self, services: Services, outbox: Outbox, settings: Settings, is_beta: bool = False
    ) -> None:
        self.id = new_id("sess")
        self.tasks = ConnectionTasks()
        self.expires_at = int(time.time()) + services.bounds.length_s
        self._is_beta = is_beta
        self._settings = settings
        self._outbox = outbox
        self._flow = services.flow
        self._conversation = Conversation(services.bounds.max_bytes)
        common = self._common = Common(
            services.flow,
            services.new_answer,
            services.followed,
            services.ahead,
            outbox,
            self._tell,
            self.tasks,
            self._conversation,
            new_id("conv"),
        )
        transcripts = Transcripts(common)
        self._answers = Answers(common, lambda: self._settings, self.tell_error, transcripts)
        self._listener = Listener(
            common,
            lambda: self._settings,
            services.make_detector,
            services.judge,
            self._answers,
            transcripts,
        )

    def begin(self) -> None:
        """Tell that it is there."""
        self._tell({"type": "session.created", "session": self._object})

    async def close(self) -> None:
        """End what is under way; nothing is told, and nothing begins."""
        self._listener.stop_waiting()
        self._answers.drop_ahead()
        self._answers.history.stop()
        await self.tasks.close()

    async def finish(self) -> None:
        """Return when all that was reported to the client is done."""
        self._answers.drop_ahead()
        self._answers.history.stop()
        await self.tasks.finish()

    async def handle(self, given: JsonMap) -> None:
        """Take an event of the client; raises ApiError."""
        event = events.client_event(given)
        match event:
            case events.SessionUpdate():
                self._update(event, given["type"])
            case events.AudioAppend():
                check_hears(self._flow.runtime.graph)
                await self._listener.append(event.audio)
            case events.AudioCommit():
                self._listener.commit()
            case events.AudioClear():
                self._listener.clear()
            case events.ItemCreate():
                item = await self._item(event.item, "item")
                previous = self._conversation.add(item, event.previous_item_id)
                self._common.tell_added(item, previous)
                self._answers.history.read_soon()
            case events.ItemRetrieve():
                await self._retrieve(event.item_id)
            case events.ItemDelete():
                self._conversation.delete(event.item_id)
                self._tell({"type": "conversation.item.deleted", "item_id": event.item_id})
                self._answers.history.read_soon()
            case events.ItemTruncate():
                self._truncate(event)
            case events.ResponseCreate():
                await self._create_response(event)
            case events.ResponseCancel():
                self._answers.cancel(event.response_id)
            case _:
                raise invalid("type", "is for WebRTC; over a WebSocket clients play what they get")

    # Settings

    @property
    def _object(self) -> Json:
        graph = self._flow.runtime.graph
        model = getattr(self._settings, "model", None) or graph.served_name
        return session_object(self._settings, self.id, model, self.expires_at)

    def _update(self, event: events.SessionUpdate, kind: str) -> None:
        given = without_flat(event.session)
        if kind == "transcription_session.update":
            given["type"] = "transcription"
        settings = updated(self._settings, given)
        check_settings(self._flow, settings)
        self._settings = settings
        self._tell({"type": "session.updated", "session": self._object})
        self._listener.configure()
        self._answers.history.read_soon()

    # Items

    async def _item(self, given: JsonMap, place: str) -> Item:
        """Return a client's item, whose media have been read; raises ApiError."""
        item = item_of(given, self._settings.audio.input.format.type, place)
        if item.sound is not None:
            check_hears(self._flow.runtime.graph)
        images = [part.image for part in item.content if part.image is not None]
        if images:
            await self._flow.check_images(images, f"{place}.content")
        return item

    async def _retrieve(self, item_id: str) -> None:
        item = self._conversation.get(item_id)
        await self._outbox.empty()
        fits = 2 * item.num_bytes < self._outbox.max_bytes
        told = item.to_json(has_media=fits)
        self._tell({"type": "conversation.item.retrieved", "item": told})

    def _truncate(self, event: events.ItemTruncate) -> None:
        given = (event.item_id, event.content_index, event.audio_end_ms)
        self._conversation.truncate(*given)
        names = ("item_id", "content_index", "audio_end_ms")
        told = dict(zip(names, given, strict=True))
        self._tell({"type": "conversation.item.truncated", **told})
        self._listener.shorten_wait()
        self._answers.history.read_soon()

    # Responses

    async def _create_response(self, event: events.ResponseCreate) -> None:
        given = without_flat(event.response or {})
        items = None
        if given.get("input") is not None:
            items = await self._input_of(given["input"])
        self._listener.stop_waiting()
        self._answers.begin(given, items)

    async def _input_of(self, given: Any) -> list[Item]:
        if not isinstance(given, list) or len(given) > MAX_ITEMS:
            raise invalid("response.input", f"must be a list of at most {MAX_ITEMS} items")
        items = []
        for number, one in enumerate(given):
            place = f"response.input[{number}]"
            if not isinstance(one, dict):
                raise invalid(place, "must be an item, an object")
            if one.get("type") == "item_reference":
                item_id = one.get("id")
                found = self._conversation.find(item_id) if isinstance(item_id, str) else None
                if found is None:
                    raise invalid(f"{place}.id", "names no item of the conversation")
                items.append(found)
            else:
                items.append(await self._item(one, place))
        return items

    # What is told

    def _tell(self, event: Json, source: object = None) -> None:
        told = beta_event(event) if self._is_beta else event
        if told is not None:
            self._outbox.tell({"event_id": new_id("event"), **told}, source)

    def tell_error(self, error: ApiError, event_id: Any = None) -> None:
        """Tell a refusal of an event, by that event's id."""
        told = {**error.envelope["error"], "code": error.code or error.type}
        told["event_id"] = event_id if isinstance(event_id, str) else None
        self._tell({"type": "error", "error": told})
