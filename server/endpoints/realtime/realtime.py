"""WebSocket /v1/realtime: a conversation by voice and by text, as OpenAI's Realtime API."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

from fastapi import APIRouter
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from omnistage.server.common.deadline import loop_time_in
from omnistage.server.common.errors import ApiError
from omnistage.server.common.json_text import parse_json
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.socket_answers import answered, new_answer
from omnistage.server.http.access.rate_limit import client_of
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.http.protocol.socket_life import (
    GOING_AWAY,
    POLICY,
    RESTART,
    TOO_LARGE,
    Ended,
    cancel_all,
    ending_of,
    say_farewell,
)
from omnistage.server.http.protocol.socket_protocol import ENDING, REALTIME
from omnistage.server.http.refusal import refuse
from omnistage.server.http.request import MAX_LOOP_BYTES
from omnistage.server.http.state import RequestState, state_of
from omnistage.server.realtime.ahead.load import AheadLoad
from omnistage.server.realtime.bounds import SessionPlaces
from omnistage.server.realtime.chat_flow import ChatFlow
from omnistage.server.realtime.session import RealtimeSession, Services
from omnistage.server.realtime.settings import Settings, TranscriptionSettings
from omnistage.server.realtime.starting import Kind, default_settings
from omnistage.server.realtime.voice.detectors import Detector, EnergyDetector
from omnistage.server.realtime.voice.judge import TurnJudge
from omnistage.server.realtime.voice.silero import SileroPool, silero_file
from omnistage.stage_configs.json_types import JsonMap

PATH = REALTIME
MAX_ERRORS = 32  # events in a row that mean nothing
MAX_EVENT = 1 << 20  # characters of an event that has no image in it
WITH_IMAGES = ("conversation.item.create", "response.create")  # bounded by the frame
YIELD_EVENTS = 32  # that are taken before others have their turn
PROTOCOL = "realtime"
BETA_PROTOCOL, BETA_HEADER = "openai-beta.realtime-v1", "realtime=v1"


def routes(gateway: Gateway) -> APIRouter:
    """WebSocket /v1/realtime."""
    router = APIRouter()
    router.add_websocket_route(PATH, Realtime(gateway), name="realtime")  # type: ignore[arg-type]
    return router


class Realtime:
    """An ASGI app: accepts sessions, a bounded number at once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._places = SessionPlaces(gateway.options.sessions)
        self._silero: SileroPool | None = None
        path = gateway.options.turn_model
        self._judge = None if path is None else TurnJudge(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        with ExitStack() as place:
            try:
                settings = self._settings(scope)
                place.enter_context(self._places.taken(client_of(scope)))
            except ApiError as error:
                await refuse(error, scope, receive, send)
                return
            await receive()  # that it wants to connect
            offered = scope["subprotocols"]
            chosen = PROTOCOL if PROTOCOL in offered else None
            await send({"type": "websocket.accept", "subprotocol": chosen})
            await Connection(self._gateway, scope, settings, self._detector, self._judge).run(
                receive, send
            )

    def _detector(self) -> Detector:
        """Make what hears speech in one session; the model is loaded for the first."""
        path = silero_file()
        if path is None:
            return EnergyDetector()
        self._silero = self._silero or SileroPool(path)
        return self._silero.detector()

    def _settings(self, scope: Scope) -> Settings:
        """Return what a session begins with; raises ApiError for one that cannot be."""
        runtime = self._gateway.runtime
        query = QueryParams(scope["query_string"])
        if "call_id" in query:
            message = "Calls have no side channel here: events go over the data channel."
            raise ApiError(404, message, param="call_id", code="call_not_found")
        model = query.get("model")
        secret = self._gateway.client_secrets.find(Headers(scope=scope))
        kind: Kind = "transcription" if query.get("intent") == "transcription" else "realtime"
        settings = default_settings(runtime, kind, model)
        if secret is None or (kind == "transcription" and secret.holds.type != kind):
            return settings
        if model is None or isinstance(secret.holds, TranscriptionSettings):
            return secret.holds
        return secret.holds.model_copy(update={"model": model})


class Connection:
    """A connection: hands a client's events to its session, and sends the session's events."""

    def __init__(
        self,
        gateway: Gateway,
        scope: Scope,
        settings: Settings,
        make_detector: Callable[[], Detector],
        judge: TurnJudge | None,
    ) -> None:
        self._gateway = gateway
        self._scope = scope
        self._threads = scope["app"].state.body_threads
        self._numbers = count()
        self._outbox = Outbox(gateway.options.max_unsent_bytes)
        flow = ChatFlow(gateway, self._threads)
        bounds = gateway.options.sessions
        ahead = AheadLoad(gateway.runtime.flights, bounds, gateway.metrics.made_ahead)
        services = Services(
            flow, self._new_answer, self._followed, ahead, make_detector, bounds, judge
        )
        self._session = RealtimeSession(
            services, self._outbox, settings, is_beta=asks_for_beta(scope)
        )
        self._num_errors = 0

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve until either side ends it."""
        sending = asyncio.create_task(self._outbox.send_all(send))
        reading = asyncio.create_task(self._read(receive))
        session = self._session
        session.begin()
        try:
            ends = {reading, sending, session.tasks.failed}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            ended = ending_of(done)
            await cancel_all(reading)
            await session.close()
            if ended is not None and not sending.done():
                if ended.error is not None:
                    session.tell_error(ended.error)
                await say_farewell(ended.code, self._outbox, send)
        finally:
            await cancel_all(reading, sending)
            await session.close()

    def _new_answer(self) -> RequestState:
        return new_answer(self._scope, next(self._numbers))

    @contextmanager
    def _followed(self, state: RequestState) -> Iterator[RequestState]:
        """Follow one answer, which has a deadline of its own."""
        with answered(self._gateway, self._scope, PATH, state):
            state.due_at = loop_time_in(state_of(self._scope).timeout_s)
            yield state

    async def _read(self, receive: Receive) -> None:
        for number in count(1):
            message = await self._next(receive)
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] == ENDING:
                await self._session.finish()
                raise Ended(RESTART)
            await self._take(message)
            if number % YIELD_EVENTS == 0:
                await asyncio.sleep(0)

    async def _next(self, receive: Receive) -> JsonMap:
        """Return the next message; raises Ended if none comes while nothing else goes on."""
        bounds = self._gateway.options.sessions
        while True:
            left_s = self._session.expires_at - time.time()
            if left_s <= 0:
                message = (
                    f"Your session hit the maximum duration of {bounds.length_s / 60:g} minutes."
                )
                raise Ended(GOING_AWAY, ApiError(400, message, code="session_expired"))
            try:
                async with asyncio.timeout(min(bounds.idle_s, left_s)):
                    return await receive()
            except TimeoutError:
                if left_s > bounds.idle_s and self._session.tasks.is_idle:
                    error = ApiError(408, "No event came in time.", code="idle_timeout")
                    raise Ended(GOING_AWAY, error) from None
            except ApiError as error:
                raise Ended(POLICY, error) from None

    async def _take(self, message: JsonMap) -> None:
        """Take one event; its refusal is told."""
        event_id = None
        try:
            event = await self._event(message)
            event_id = event.get("event_id")
            await self._session.handle(event)
        except ApiError as error:
            self._num_errors += 1
            if self._num_errors >= MAX_ERRORS:
                raise Ended(POLICY, error) from None
            self._session.tell_error(error, event_id)
        else:
            self._num_errors = 0

    async def _event(self, message: JsonMap) -> JsonMap:
        """Return what a frame says; a long one is parsed beside the event loop."""
        text = message.get("text")
        if text is None:
            raise ApiError(400, "Events are text frames of JSON.", code="invalid_json")
        if len(text) <= MAX_LOOP_BYTES:
            return parse_json(text.encode())
        loop = asyncio.get_running_loop()
        event = await loop.run_in_executor(self._threads, parse_json, text.encode())
        if len(text) > MAX_EVENT and event.get("type") not in WITH_IMAGES:
            message_ = f"An event has more than {MAX_EVENT} characters."
            raise Ended(TOO_LARGE, ApiError(413, message_, code="request_too_large"))
        return event


def asks_for_beta(scope: Scope) -> bool:
    """Returns whether a client wants events by beta's names."""
    header = Headers(scope=scope).get("openai-beta", "")
    return BETA_HEADER in header or BETA_PROTOCOL in scope["subprotocols"]
