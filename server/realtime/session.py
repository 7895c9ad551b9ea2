"""A session: takes a client's events, one after the other, and tells the server's."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from omnistage.server.errors import ApiError, invalid, unsupported
from omnistage.server.http.outbox import Outbox
from omnistage.server.http.served import check_makes, check_model
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.media.parts import decoded
from omnistage.server.realtime import events
from omnistage.server.realtime.answers import Answer, Followed, chat_body
from omnistage.server.realtime.beta import beta_event, without_flat
from omnistage.server.realtime.chat_flow import ChatFlow
from omnistage.server.realtime.conversation import MAX_ITEMS, Conversation
from omnistage.server.realtime.formats import Sound
from omnistage.server.realtime.hearing import Hearing, MakeDetector
from omnistage.server.realtime.ids import new_id
from omnistage.server.realtime.items import Item, Json, Part, item_of
from omnistage.server.realtime.listening import MIN_COMMIT_MS
from omnistage.server.realtime.response import Response
from omnistage.server.realtime.settings import (
    LOGPROBS,
    RealtimeSettings,
    Settings,
    TranscriptionSettings,
    response_settings,
    session_object,
    transcription_of,
    updated,
)
from omnistage.server.realtime.transcripts import Job, Transcripts
from omnistage.server.realtime.turns import Started, Stopped
from omnistage.server.tasks.transcription import check_hears

MAX_OUT_OF_BAND = 4
MAX_S = 3600  # of a session
MS = 1000  # in a second


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of its server that a session needs."""

    flow: ChatFlow
    followed: Followed
    make_detector: MakeDetector


class Session:
    """One session; `handle` takes an event, and answers go on beside it."""

    def __init__(
        self, services: Services, outbox: Outbox, settings: Settings, is_beta: bool = False
    ) -> None:
        self.id = new_id("sess")
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._services = services
        self._outbox = outbox
        self._is_beta = is_beta
        self._settings = settings
        self.expires_at = int(time.time()) + MAX_S
        self._conversation = Conversation()
        self._conversation_id = new_id("conv")
        self._hearing = Hearing(services.make_detector)
        self._hearing.configure(settings.audio.input)
        self._transcripts = Transcripts(
            services.flow, services.followed, self._conversation, self._tell, self._begin
        )
        self._speaking_id: str | None = None  # of the item that is being spoken
        self._active: Answer | None = None  # of the conversation
        self._out_of_band: dict[str, Answer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._owes_answer = False  # to a turn that ended while another was answered
        self._idle: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Returns whether some response is under way."""
        return bool(self._tasks)

    def begin(self) -> None:
        """Tell that it is there."""
        self._tell({"type": "session.created", "session": self._object})

    async def close(self) -> None:
        """End what is under way; nothing is told, and nothing begins."""
        self._is_closed = True
        self._stop_waiting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def handle(self, given: Mapping[str, Any]) -> None:
        """Take an event of the client; raises ApiError."""
        event = events.client_event(given)
        match event:
            case events.SessionUpdate():
                self._update(event, given["type"])
            case events.AudioAppend():
                await self._append(event)
            case events.AudioCommit():
                self._commit()
            case events.AudioClear():
                self._hearing.buffer.clear()
                self._hearing.end_turn()
                self._speaking_id = None
                self._tell({"type": "input_audio_buffer.cleared"})
            case events.ItemCreate():
                await self._create_item(event)
            case events.ItemRetrieve():
                await self._retrieve(event.item_id)
            case events.ItemDelete():
                self._conversation.delete(event.item_id)
                self._tell({"type": "conversation.item.deleted", "item_id": event.item_id})
            case events.ItemTruncate():
                self._truncate(event)
            case events.ResponseCreate():
                await self._create_response(event)
            case events.ResponseCancel():
                self._cancel(event.response_id)
            case _:
                raise invalid("type", "is for WebRTC; over a WebSocket clients play what they get")

    # Settings

    @property
    def _object(self) -> Json:
        graph = self._services.flow.runtime.graph
        model = getattr(self._settings, "model", None) or graph.served_name
        return session_object(self._settings, self.id, model, self.expires_at)

    def _update(self, event: events.SessionUpdate, kind: str) -> None:
        given = without_flat(event.session)
        if kind == "transcription_session.update":
            given["type"] = "transcription"
        self._settings = self._checked(updated(self._settings, given), "session")
        self._hearing.configure(self._settings.audio.input)
        self._stop_waiting()
        self._tell({"type": "session.updated", "session": self._object})

    def _checked(self, settings: Settings, place: str) -> Settings:
        """Return settings that this server can do; ApiError for others."""
        runtime = self._services.flow.runtime
        if isinstance(settings, RealtimeSettings):
            adapters = [lora.name for lora in runtime.fleet.loras]
            check_model(settings.model, runtime.graph.served_names, adapters)
            for modality in settings.output_modalities:
                check_makes(modality, runtime.graph.outputs, modality)
            self._services.flow.speaker_of(
                settings.audio.output.voice, f"{place}.audio.output.voice"
            )
        return settings

    # What the client says

    async def _append(self, event: events.AudioAppend) -> None:
        check_hears(self._services.flow.runtime.graph)
        for change in await self._hearing.add(decoded(event.audio, "audio")):
            if isinstance(change, Started):
                self._begin_turn(change)
            else:
                self._end_turn(change)

    def _begin_turn(self, started: Started) -> None:
        self._stop_waiting()
        self._hearing.buffer.forget_before(started.at_ms)
        self._speaking_id = new_id("item")
        detection = self._settings.audio.input.turn_detection
        interrupted = None
        if detection is not None and detection.interrupt_response:
            interrupted = self._take_active()
        if interrupted is not None:
            interrupted.withdraw()
        about = {"audio_start_ms": round(started.at_ms), "item_id": self._speaking_id}
        self._tell({"type": "input_audio_buffer.speech_started", **about})
        if interrupted is not None:
            interrupted.cancel("turn_detected")

    def _end_turn(self, stopped: Stopped) -> None:
        about = {"audio_end_ms": round(stopped.at_ms), "item_id": self._speaking_id}
        self._tell({"type": "input_audio_buffer.speech_stopped", **about})
        item = self._add_sound(self._hearing.buffer.take(end_ms=stopped.at_ms))
        detection = self._settings.audio.input.turn_detection
        is_answered = isinstance(self._settings, RealtimeSettings)
        if detection is not None and detection.create_response and is_answered:
            self._owes_answer = True
            self._pay_answer()
        self._transcribe(item, self._active)

    def _commit(self) -> None:
        if self._hearing.buffer.ms < MIN_COMMIT_MS:
            message = (
                f"Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS}ms of audio, but buffer only has {self._hearing.buffer.ms:.2f}ms."
            )
            raise ApiError(400, message, code="input_audio_buffer_commit_empty")
        self._hearing.end_turn()
        self._transcribe(self._add_sound(self._hearing.buffer.take()), None)

    def _add_sound(self, sound: Sound) -> Item:
        item = Item(self._speaking_id or new_id("item"))
        item.content.append(Part("input_audio", sound=sound))
        self._speaking_id = None
        previous = self._conversation.add(item)
        about = {"item_id": item.id, "previous_item_id": previous}
        self._tell({"type": "input_audio_buffer.committed", **about})
        self._tell_added(item, previous)
        return item

    def _transcribe(self, item: Item, answer: Answer | None) -> None:
        """Transcribe what was said if the session is to, after its answer has begun."""
        settings = transcription_of(self._settings)
        if settings is not None:
            has_logprobs = LOGPROBS in (self._settings.include or ())
            after = None if answer is None else answer.begun
            self._transcripts.add(Job(item, settings, has_logprobs, after))

    def _tell_added(self, item: Item, previous: str | None) -> None:
        for step in ("added", "done"):
            about = {"previous_item_id": previous, "item": item.to_json()}
            self._tell({"type": f"conversation.item.{step}", **about})

    # Items

    async def _create_item(self, event: events.ItemCreate) -> None:
        item = await self._item(event.item, "item")
        previous = self._conversation.add(item, event.previous_item_id)
        self._tell_added(item, previous)

    async def _item(self, given: Mapping[str, Any], place: str) -> Item:
        """Return a client's item, whose media have been read; raises ApiError."""
        item = item_of(given, self._settings.audio.input.format.type, place)
        if item.sound is not None:
            check_hears(self._services.flow.runtime.graph)
        images = [part.image for part in item.content if part.image is not None]
        if images:
            await self._services.flow.check_images(images, f"{place}.content")
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

    # Responses

    async def _create_response(self, event: events.ResponseCreate) -> None:
        if isinstance(self._settings, TranscriptionSettings):
            raise unsupported("type", "response.create in a transcription session")
        given = without_flat(event.response or {})
        is_out_of_band = given.get("conversation") == "none"
        if is_out_of_band and len(self._out_of_band) >= MAX_OUT_OF_BAND:
            message = f"The session already has {MAX_OUT_OF_BAND} responses out of band."
            raise ApiError(400, message, code="too_many_responses")
        if not is_out_of_band and self._active is not None and not self._active.is_over:
            response_id = self._active.response.id
            message = (
                "Conversation already has an active response in progress: "
                f"{response_id}. Wait until the response is finished before creating a new one."
            )
            raise ApiError(400, message, code="conversation_already_has_active_response")
        items = None
        if given.get("input") is not None:
            items = await self._input_of(given["input"])
        self._respond(given, items)

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

    def _respond(self, given: Mapping[str, Any], items: list[Item] | None = None) -> None:
        """Begin a response, of the conversation or of given items; raises ApiError."""
        session = self._settings
        assert isinstance(session, RealtimeSettings)
        services = self._services
        settings = response_settings(session, given)
        runtime = services.flow.runtime
        for modality in settings.output_modalities:
            check_makes(modality, runtime.graph.outputs, modality)
        voice = settings.audio.output.voice
        speaker = services.flow.speaker_of(voice, "response.audio.output.voice")
        is_out_of_band = settings.conversation == "none"
        conversation = None if is_out_of_band else self._conversation
        response = Response(settings, conversation, self._conversation_id, self._tell)
        answer = Answer(response, services.flow, self._outbox)
        chat = list(self._conversation) if items is None else items
        self._stop_waiting()
        if is_out_of_band:
            self._out_of_band[response.id] = answer
        else:
            self._active = answer
            self._owes_answer = False
        response.begin()
        make_body = partial(chat_body, chat, settings, session, speaker)
        task = answer.start(self._begin(answer.run(make_body, services.followed)))
        task.add_done_callback(lambda _: self._ended(answer))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task of the session, whose failure ends it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._fail(failure)

    def _ended(self, answer: Answer) -> None:
        self._out_of_band.pop(answer.response.id, None)
        if self._is_closed or self.failed.done():
            return
        if self._active is answer:
            self._active = None
            self._wait_for_speech(answer.response)
        self._beside(self._pay_answer)

    def _beside(self, work: Callable[[], None]) -> None:
        """Do what no event of the client asked for; its failure ends the session."""
        try:
            work()
        except ClientTooSlow as failure:
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(failure)

    def _pay_answer(self) -> None:
        """Answer the last turn, once nothing else is answered."""
        if self._owes_answer and (self._active is None or self._active.is_over):
            self._owes_answer = False
            if not isinstance(self._settings, RealtimeSettings):
                return
            try:
                self._respond({})
            except ApiError as error:
                self.tell_error(error)

    def _cancel(self, response_id: str | None) -> None:
        if response_id in (None, None if self._active is None else self._active.response.id):
            answer = self._take_active()
        else:
            answer = self._out_of_band.get(response_id or "")
        if answer is None or answer.is_over:
            message = "Cancellation failed: no active response found"
            raise ApiError(400, message, code="response_cancel_not_active")
        answer.cancel("client_cancelled")

    def _take_active(self) -> Answer | None:
        """Return the conversation's response if one is under way: it is so no more."""
        answer, self._active = self._active, None
        return None if answer is None or answer.is_over else answer

    async def finish(self) -> None:
        """Return when all responses that are under way have ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # Silence

    def _wait_for_speech(self, response: Response) -> None:
        """Take the user for silent some time after the response has been played."""
        detection = self._settings.audio.input.turn_detection
        if detection is None or detection.idle_timeout_ms is None or self._hearing.is_speaking:
            return
        wait_ms = detection.idle_timeout_ms + response.left_to_play_ms
        loop = asyncio.get_running_loop()
        start_ms = self._hearing.buffer.end_ms
        work = partial(self._tell_silence, start_ms)
        self._idle = loop.call_later(wait_ms / MS, self._beside, work)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _tell_silence(self, start_ms: float) -> None:
        buffer = self._hearing.buffer
        self._speaking_id = new_id("item")
        about = {"audio_start_ms": round(start_ms), "audio_end_ms": round(buffer.end_ms)}
        kind = "input_audio_buffer.timeout_triggered"
        self._tell({"type": kind, **about, "item_id": self._speaking_id})
        self._add_sound(buffer.take())
        self._owes_answer = True
        self._pay_answer()

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
