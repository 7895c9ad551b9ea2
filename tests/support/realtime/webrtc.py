"""A client of WebRTC's calls, as a browser is one: a microphone, a speaker, a channel of events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import av
import httpx
import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from support.realtime.order import Order, check_event
from support.waiting import PATIENCE_S

RATE_HZ = 48_000
FRAME = RATE_HZ // 50
PATH = "/v1/realtime/calls"


class Microphone(MediaStreamTrack):  # type: ignore[misc]
    """Silence, or a loud tone while somebody speaks."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.speaks = False
        self._number = 0
        self._start: float | None = None

    async def recv(self) -> av.AudioFrame:
        now = asyncio.get_running_loop().time()
        self._start = now if self._start is None else self._start
        await asyncio.sleep(max(0.0, self._start + self._number / 50 - now))
        places = np.arange(FRAME) + self._number * FRAME
        wave = 12_000 * np.sin(places / 30) if self.speaks else 20 * np.sin(places / 5)
        frame = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], "s16", "mono")
        frame.sample_rate, frame.time_base = RATE_HZ, Fraction(1, RATE_HZ)
        frame.pts = self._number * FRAME
        self._number += 1
        return frame


class Caller:
    """One call from its client's side; its events are checked as a WebSocket's are."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.url = url
        self.headers = headers
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.microphone = Microphone()
        self.channel = self.peer.createDataChannel("oai-events")
        self.events: list[dict[str, Any]] = []
        self.order = Order()
        self.levels: list[float] = []  # loudness of each frame that came
        self.location = ""
        self._came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listening: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.sounded = asyncio.Event()  # something was heard
        self.channel.on("message", self._take)
        self.channel.on("close", self.ended.set)
        self.peer.on("connectionstatechange", self._note_state)
        self.peer.on("track", self._on_track)

    @property
    def num_heard(self) -> int:
        """How many frames with a sound have come."""
        return sum(level > 0 for level in self.levels)

    def _note_state(self) -> None:
        if self.peer.connectionState in ("closed", "failed"):
            self.ended.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._listening = asyncio.create_task(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            samples = frame.to_ndarray().astype(np.float64)
            self.levels.append(float(np.sqrt(np.mean(samples**2))))
            if self.levels[-1] > 0:
                self.sounded.set()

    def _take(self, text: str) -> None:
        event = json.loads(text)
        check_event(event)
        self.order.add(event)
        self.events.append(event)
        self._came.put_nowait(event)

    async def offer(self) -> str:
        self.peer.addTrack(self.microphone)
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return str(self.peer.localDescription.sdp)

    async def post(self, offer: str, session: Any = None) -> httpx.Response:
        """Send an offer: with settings as a form, without as it is."""
        async with httpx.AsyncClient(timeout=600, headers=self.headers) as client:
            if session is None:
                head = {"content-type": "application/sdp"}
                return await client.post(f"{self.url}{PATH}", content=offer, headers=head)
            form = {"sdp": (None, offer), "session": (None, json.dumps(session))}
            return await client.post(f"{self.url}{PATH}", files=form)

    async def connect(self, session: Any = None) -> None:
        answer = await self.post(await self.offer(), session)
        assert answer.status_code == 201, answer.text
        assert answer.headers["content-type"].startswith("application/sdp")
        self.location = answer.headers["location"]
        assert self.location.startswith(f"{PATH}/rtc_")
        await self.peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))

    def say(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event = await self._came.get()
                assert event["type"] != "error" or kind == "error", event
                if event["type"] == kind:
                    return event

    async def write(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        self.say("conversation.item.create", item=item)
        await self.until("conversation.item.done")

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def responses(self) -> list[dict[str, Any]]:
        """Those that are done."""
        return [one["response"] for one in self.events if one["type"] == "response.done"]

    async def close(self) -> None:
        await self.peer.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


@asynccontextmanager
async def calling(url: str, session: Any = None, **headers: str) -> AsyncIterator[Caller]:
    """Call until the context ends."""
    caller = Caller(url, headers)
    try:
        await caller.connect(session)
        yield caller
    finally:
        await caller.close()
