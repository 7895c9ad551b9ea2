"""One call: a browser's peer connection on one side, a session of /v1/realtime on the other."""

import asyncio
import base64
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from omnistage.server.realtime.webrtc.network import announced
from omnistage.server.realtime.webrtc.outgoing import OutgoingAudio, QueuedAudio
from omnistage.server.realtime.webrtc.tracks import PacedTrack, samples_of
from omnistage.stage_configs.json_types import Json, JsonMap

logger = logging.getLogger(__name__)

CHANNEL = "oai-events"
CONNECT_S = 30.0  # from the answer to a connection
MAX_WAITING = 256  # events before the channel is open
MAX_UNSENT = 16 << 20  # bytes on the channel that a client does not take
OWN_EVENT = "webrtc_"  # begins the ids of the events that are ours, not the client's
AUDIO_DELTAS = ("response.output_audio.delta", "response.audio.delta")
FLAT_FORMATS = ("input_audio_format", "output_audio_format")  # of the beta


class SessionRefused(Exception):
    """The session refused the settings of the call: its `error` event."""

    def __init__(self, error: JsonMap) -> None:
        super().__init__(str(error.get("message")))
        self.error = error


class NoPortFree(Exception):
    """No UDP port of any address could be bound."""


def without_formats(session: JsonMap) -> Json:
    """Return settings without the formats of audio: a track has its own."""
    kept = {name: value for name, value in session.items() if name not in FLAT_FORMATS}
    audio = kept.get("audio")
    if isinstance(audio, Mapping):
        kept["audio"] = {
            side: {key: one for key, one in fields.items() if key != "format"}
            if isinstance(fields, Mapping)
            else fields
            for side, fields in audio.items()
        }
    return kept


@dataclass(slots=True)
class WebRtcCall:
    """Joins a client's tracks and events to a session; `run` returns when either has ended."""

    id: str
    socket: ClientConnection
    addresses: Sequence[str] = ()  # that are announced in place of the machine's own
    peer: RTCPeerConnection = field(
        default_factory=lambda: RTCPeerConnection(RTCConfiguration(iceServers=[])), init=False
    )
    _channel: RTCDataChannel | None = field(default=None, init=False)
    _waiting: list[str] = field(default_factory=list, init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _connected: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _audio: OutgoingAudio = field(init=False)
    _session: JsonMap = field(default_factory=dict, init=False)

    async def answer(self, offer: str, session: JsonMap | None) -> str:
        """Begin the session, and return the answer to an offer.

        Raises SessionRefused, NoPortFree, and ValueError for an offer that means nothing.
        """
        if "a=end-of-candidates" in offer and "a=candidate:" not in offer:
            raise ValueError("has no candidates, and none may come")
        self._audio = OutgoingAudio(self._notice)
        await self._begin_session(session)
        self.peer.on("track", self._on_track)
        self.peer.on("datachannel", self._on_channel)
        self.peer.on("connectionstatechange", self._on_state)
        await self.peer.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        kinds = [one.kind for one in self.peer.getTransceivers()]
        if kinds != ["audio"]:
            raise ValueError(f"has media {', '.join(kinds) or 'of no kind'}; allowed: one audio")
        self.peer.addTrack(PacedTrack(self._audio.take))
        await self.peer.setLocalDescription(await self.peer.createAnswer())
        sdp = str(self.peer.localDescription.sdp)
        if "a=candidate:" not in sdp:
            raise NoPortFree
        return announced(sdp, self.addresses)

    async def _begin_session(self, session: JsonMap | None) -> None:
        event = json.loads(await self.socket.recv())
        if session:
            given = without_formats({**session, "model": None})
            await self._say({"type": "session.update", "session": given})
            event = json.loads(await self.socket.recv())
            if event["type"] == "error":
                raise SessionRefused(event["error"])
            event["type"] = "session.created"  # with the settings that the client asked for
        self._session = event["session"]
        self._tell(event)

    async def run(self) -> None:
        """Carry the call until it ends; a client that does not connect in time ends it."""
        self._begin(self._read_session())
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connected.wait()
            await self._ended.wait()
        except TimeoutError:
            logger.info("call %s: no connection within %g s", self.id, CONNECT_S)
        finally:
            await self.close()

    def hang_up(self) -> None:
        """End the call."""
        self._connected.set()
        self._ended.set()

    async def close(self) -> None:
        """End both sides."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.peer.close()
        await self.socket.close()

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._check)

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            if not isinstance(task.exception(), ConnectionClosed):
                logger.error("call %s failed", self.id, exc_info=task.exception())
            self.hang_up()

    # The client

    def _on_state(self) -> None:
        if self.peer.connectionState == "connected":
            self._connected.set()
        elif self.peer.connectionState in ("failed", "closed"):
            self.hang_up()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._begin(self._hear(track))

    async def _hear(self, track: MediaStreamTrack) -> None:
        async for pcm in samples_of(track):
            audio = base64.b64encode(pcm).decode("ascii")
            await self._say({"type": "input_audio_buffer.append", "audio": audio})

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL:
            return
        self._channel = channel
        channel.on("message", lambda message: self._begin(self._take(message)))
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            channel.send(text)

    async def _take(self, message: str | bytes) -> None:
        """Pass an event of the client on; what concerns the audio on its way is done here."""
        text = message if isinstance(message, str) else message.decode(errors="replace")
        try:
            event = json.loads(text)
        except ValueError:
            event = None  # the session says what is wrong with it
        if isinstance(event, dict):
            if event.get("type") == "output_audio_buffer.clear":
                await self._cut()
                return
            if event.get("type") == "session.update" and isinstance(event.get("session"), dict):
                event["session"] = without_formats(event["session"])
                text = json.dumps(event)
        await self.socket.send(text)

    # The session

    async def _read_session(self) -> None:
        async for text in self.socket:
            event = json.loads(text)
            kind = event["type"]
            if kind in AUDIO_DELTAS:
                place = (event["response_id"], event["item_id"], event["content_index"])
                self._audio.add(QueuedAudio(*place, base64.b64decode(event["delta"])))
                continue
            if kind == "error" and str(event["error"].get("event_id")).startswith(OWN_EVENT):
                continue  # such as an item that the client has deleted
            if kind == "session.updated":
                self._session = event["session"]
            self._tell(event)
            if kind == "response.done":
                self._audio.end(event["response"]["id"])
            elif kind == "input_audio_buffer.speech_started" and self._interrupts:
                await self._cut()
        self.hang_up()

    @property
    def _interrupts(self) -> bool:
        detection = self._session["audio"]["input"].get("turn_detection") or {}
        return bool(detection.get("interrupt_response"))

    async def _cut(self) -> None:
        """Stop the audio; the answer keeps the words that were heard."""
        cut = self._audio.clear()
        if cut is not None:
            place = {"item_id": cut.item_id, "content_index": cut.content_index}
            end = {"audio_end_ms": cut.heard_ms}
            await self._say({"type": "conversation.item.truncate", **place, **end})

    async def _say(self, event: Json) -> None:
        await self.socket.send(json.dumps({"event_id": f"{OWN_EVENT}{uuid4().hex[:16]}", **event}))

    # What the client is told

    def _notice(self, what: str, response_id: str) -> None:
        kind = f"output_audio_buffer.{what}"
        self._tell(
            {"type": kind, "event_id": f"event_{uuid4().hex[:21]}", "response_id": response_id}
        )

    def _tell(self, event: Json) -> None:
        text = json.dumps(event)
        channel = self._channel
        if channel is None:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(text)
        elif channel.readyState == "open":
            if channel.bufferedAmount > MAX_UNSENT:
                self.hang_up()
            else:
                channel.send(text)
