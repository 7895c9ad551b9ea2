"""WebSocket /v1/audio/speech/stream: a text is spoken while it comes, piece by piece."""

import asyncio
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.types import Receive, Scope, Send

from omnistage.server.common.deadline import due_at, loop_time_in
from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.common.fields import parse, warning_headers
from omnistage.server.endpoints.audio.speech_stream_answers import SpokenAnswers
from omnistage.server.endpoints.audio.speech_stream_events import SpeechEvents, event_of
from omnistage.server.endpoints.audio.speech_stream_fields import SessionConfig
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.access.bearer import KEY_PROTOCOL
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.http.protocol.socket_life import (
    NORMAL,
    POLICY,
    RESTART,
    Ended,
    cancel_all,
    ending_of,
    say_farewell,
)
from omnistage.server.http.protocol.socket_protocol import ENDING, SPEECH_STREAM
from omnistage.server.http.refusal import refuse
from omnistage.server.http.request import MAX_LOOP_BYTES
from omnistage.server.http.state import state_of
from omnistage.server.tasks.speech.speech_fields import MAX_TEXT
from omnistage.server.tasks.speech.utterance import Utterance, Voice
from omnistage.server.tasks.speech_task import (
    max_text_of,
    outputs_of,
    speech_choice,
    speech_of,
    speech_request,
)
from omnistage.stage_configs.json_types import JsonMap

PATH = SPEECH_STREAM
CONFIG_S = 10.0  # from the connection to its first session.config
IDLE_S = 60.0  # without a word while nothing is spoken
MAX_WAITING = 8  # texts that wait for their turn
MAX_ERRORS = 32  # events of one connection that mean nothing


def routes(gateway: Gateway) -> APIRouter:
    """WebSocket /v1/audio/speech/stream."""
    router = APIRouter()
    router.add_websocket_route(PATH, SpeechStream(gateway), name="speech_stream")  # type: ignore[arg-type]
    return router


class SpeechStream:
    """An ASGI app: accepts connections, as many as the server takes requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._num_connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        try:
            self._check()
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        self._num_connections += 1
        try:
            await receive()  # that it wants to connect
            offered = (one for one in scope["subprotocols"] if not one.startswith(KEY_PROTOCOL))
            await send({"type": "websocket.accept", "subprotocol": next(offered, None)})
            await Session(self._gateway, scope).run(receive, send)
        finally:
            self._num_connections -= 1

    def _check(self) -> None:
        outputs_of(self._gateway.runtime.graph)
        limit = self._gateway.runtime.flights.max_requests
        if self._num_connections >= limit:
            message = f"The server already has {limit} connections."
            raise ApiError(503, message, code="server_overloaded", retry_after_s=1)


class Session:
    """One connection: reads events, speaks one text after the other, sends events and sound."""

    def __init__(self, gateway: Gateway, scope: Scope) -> None:
        self._gateway = gateway
        self._scope = scope
        self._state = state_of(scope)
        self._outbox = Outbox(gateway.options.max_unsent_bytes)
        self._events = SpeechEvents(self._outbox)
        self._answers = SpokenAnswers(gateway, scope, self._events)
        self._voice: Voice | None = None
        self._open: Utterance | None = None  # whose text comes
        self._waiting: deque[Utterance] = deque()
        self._has_waiting = asyncio.Event()
        self._speaking: asyncio.Task[None] | None = None
        self._failure: ApiError | None = None  # of what is spoken, told already
        self._num_utterances = 0
        self._num_errors = 0
        self._is_ending = False
        self._until = ExitStack()  # holds the room that the voice's sound takes

    async def run(self, receive: Receive, send: Send) -> None:
        """Until either side ends it."""
        sending = asyncio.create_task(self._outbox.send_all(send))
        tasks = {asyncio.create_task(self._read(receive)), asyncio.create_task(self._speak_all())}
        try:
            done, _ = await asyncio.wait({*tasks, sending}, return_when=asyncio.FIRST_COMPLETED)
            ended = ending_of(done)
            await cancel_all(*tasks)
            if ended is not None and not sending.done():
                if ended.error is not None:
                    self._events.error(ended.error)
                await say_farewell(ended.code, self._outbox, send)
        finally:
            await cancel_all(*tasks, sending)
            self._forget_sound()

    # What comes

    async def _read(self, receive: Receive) -> None:
        while True:
            message = await self._next(receive)
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] == ENDING:
                self._end_after_this()
                continue
            try:
                await self._obey(await self._event(message))
            except ApiError as error:
                self._num_errors += 1
                if self._num_errors > MAX_ERRORS:
                    raise Ended(POLICY, error) from None
                self._events.error(error)

    async def _next(self, receive: Receive) -> JsonMap:
        """The next message; Ended if none comes while nothing else goes on."""
        while True:
            try:
                async with asyncio.timeout(CONFIG_S if self._voice is None else IDLE_S):
                    return await receive()
            except TimeoutError:
                if self._voice is None or self._is_idle:
                    message = "No event came in time."
                    raise Ended(POLICY, ApiError(408, message, code="idle_timeout")) from None
            except ApiError as error:
                raise Ended(POLICY, error) from None

    async def _event(self, message: JsonMap) -> JsonMap:
        """Returns what a frame says; a long one is parsed beside the event loop."""
        if len(message.get("text") or "") <= MAX_LOOP_BYTES:
            return event_of(message)
        threads = self._scope["app"].state.body_threads
        return await asyncio.get_running_loop().run_in_executor(threads, event_of, message)

    @property
    def _is_idle(self) -> bool:
        has_open = self._open is not None and not self._open.is_over
        return not has_open and self._speaking is None and not self._waiting

    async def _obey(self, event: JsonMap) -> None:
        kind = event.get("type")
        if kind == "session.config":
            await self._configure(event)
        elif kind == "session.close":
            raise Ended(NORMAL)
        elif kind not in ("input.text", "input.done", "input.cancel"):
            raise invalid("type", "is none of the events that a client sends")
        elif self._voice is None:
            raise invalid("type", "must be session.config first")
        elif kind == "input.cancel":
            self._cancel()
        else:
            self._take(self._voice, kind, event.get("text"))

    async def _configure(self, event: JsonMap) -> None:
        if self._open is not None:
            raise invalid("type", "cannot be session.config before the input.done of a text")
        gateway = self._gateway
        config = parse(SessionConfig, event)
        choice = speech_choice(config, gateway.runtime, gateway.voices)
        speech_request(config, gateway.runtime, choice)  # for what it refuses
        reference, until = None, ExitStack()
        if choice.has_sound:
            if self._waiting:
                raise invalid("type", "cannot name a sound while texts wait to be spoken")
            self._state.charge()
            try:
                async with due_at(loop_time_in(self._state.timeout_s)):
                    reference = await choice.reference(gateway.voices, gateway.media, until)
            except BaseException:
                until.close()
                raise
        self._forget_sound()
        self._until = until
        self._events.warning = warning_headers(config.unknown).get("x-omnistage-warning", "")
        self._voice = Voice(
            without_sound(config),
            config.audio_encoding == "binary",
            replace(choice, sound=None),
            reference,
            speech_of(gateway.runtime).takes_pieces,
            max_text_of(gateway.runtime, config.instructions),
        )

    def _forget_sound(self) -> None:
        """Gives back the voice's part of the room of media."""
        self._until.close()

    def _take(self, voice: Voice, kind: str, text: Any) -> None:
        """A piece of a text, or its end."""
        if kind == "input.text" and not isinstance(text, str):
            raise invalid("text", "must be a string")
        if kind == "input.text" and not text:
            return
        utterance = self._open or self._begin(voice)
        if kind == "input.done":
            self._open = None
            utterance.text.end()
        elif not utterance.is_over:
            try:
                utterance.add(text, voice.max_text if voice.takes_pieces else MAX_TEXT)
            except ApiError as error:
                self._fail(utterance, error)

    def _begin(self, voice: Voice) -> Utterance:
        if len(self._waiting) >= MAX_WAITING:
            message = f"More than {MAX_WAITING} texts wait to be spoken."
            raise Ended(POLICY, ApiError(429, message, code="too_many_texts"))
        utterance = self._open = Utterance(self._num_utterances, voice)
        self._num_utterances += 1
        self._waiting.append(utterance)
        self._has_waiting.set()
        return utterance

    def _cancel(self) -> None:
        """Cancels the current and all queued utterances."""
        self._open = None
        if self._speaking is not None:
            self._speaking.cancel()
        for utterance in self._waiting:
            self._events.done(utterance, "cancelled")
        self._waiting.clear()

    def _fail(self, utterance: Utterance, error: ApiError) -> None:
        """An answer cannot go on, though its text still comes."""
        self._events.error(error, utterance)
        if utterance in self._waiting:
            self._waiting.remove(utterance)
            self._events.done(utterance, "failed")
        elif self._speaking is not None:
            self._failure = error
            self._speaking.cancel()

    def _end_after_this(self) -> None:
        """The server stops: what is spoken is spoken to its end."""
        self._is_ending = True
        self._has_waiting.set()

    # What is spoken

    async def _speak_all(self) -> None:
        while True:
            while not self._waiting and not self._is_ending:
                self._has_waiting.clear()
                await self._has_waiting.wait()
            if not self._waiting:
                raise Ended(RESTART)
            utterance = self._waiting.popleft()
            self._failure = None
            self._speaking = asyncio.create_task(self._answers.speak(utterance))
            try:
                await asyncio.wait({self._speaking})
            finally:
                await cancel_all(self._speaking)
            speaking, self._speaking = self._speaking, None
            if speaking.cancelled():
                self._events.done(utterance, "cancelled" if self._failure is None else "failed")
            else:
                speaking.result()
            await self._outbox.empty()


def without_sound(config: SessionConfig) -> SessionConfig:
    """A configuration as it is kept: its sound has been read, unknown fields have been told."""
    kept = config.model_copy(update={"ref_audio": None})
    kept.__pydantic_extra__ = {}
    return kept
