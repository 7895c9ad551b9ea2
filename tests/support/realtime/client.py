"""A client of /v1/realtime: every event that it gets is valid, and comes in OpenAI's order."""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from support.gateway.serving import RunningGateway
from support.realtime.order import Event, Order, check_event
from support.waiting import PATIENCE_S
from websockets.sync.client import ClientConnection, connect

PATH = "/v1/realtime"


class Talk:
    """One session of a client; what it gets is checked as it comes."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.events: list[Event] = []
        self.order = Order()

    def say(self, kind: str, **fields: Any) -> None:
        self.ws.send(json.dumps({"type": kind, **fields}))

    def event(self, timeout: float = PATIENCE_S) -> Event:
        got = self.ws.recv(timeout=timeout)
        event: Event = json.loads(got)
        self.events.append(event)
        check_event(event)
        self.order.add(event)
        return event

    def until(self, kind: str) -> Event:
        """The next event of a type; those before it are in `events`."""
        while True:
            event = self.event()
            if event["type"] == kind:
                return event

    def is_quiet(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes for so long."""
        try:
            self.event(timeout=seconds)
        except TimeoutError:
            return True
        return False

    def update(self, **session: Any) -> Event:
        self.say("session.update", session={"type": "realtime", **session})
        updated = self.event()
        assert updated["type"] == "session.updated", updated
        return dict(updated["session"])

    def write(self, text: str, **more: Any) -> Event:
        """Create an item of the user; returns it."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content, **more}
        self.say("conversation.item.create", item=item)
        return dict(self.until("conversation.item.done")["item"])

    def answer(self, **response: Any) -> Event:
        """Have the model answer; returns the response."""
        self.say("response.create", response=response)
        return dict(self.until("response.done")["response"])

    def append(self, samples: "np.ndarray[Any, np.dtype[np.int16]]") -> None:
        audio = base64.b64encode(samples.astype("<i2").tobytes()).decode()
        self.say("input_audio_buffer.append", audio=audio)

    def told(self, kind: str) -> list[Event]:
        """Events of a type so far."""
        return [event for event in self.events if event["type"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


@contextlib.contextmanager
def talking(gateway: RunningGateway, query: str = "", **options: Any) -> Iterator[Talk]:
    """A session, at whose end no stage has a request."""
    url = gateway.url.replace("http", "ws", 1) + PATH + query
    options = {"close_timeout": 2, "compression": None, **options}
    with connect(url, **options) as ws:
        talk = Talk(ws)
        assert talk.event()["type"] == "session.created"
        yield talk
    gateway.wait_until_idle()


def tone(seconds: float, rate_hz: int = 24_000) -> "np.ndarray[Any, np.dtype[np.int16]]":
    """A sound as loud as speech: int16 [n]."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    wave = np.sin(2 * np.pi * 220 * times) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * times))
    return (8000 * wave).astype(np.int16)


def speech_like() -> "np.ndarray[Any, np.dtype[np.int16]]":
    """Vowels between silences: harmonics of a falling pitch through two formants."""
    rate_hz = 24_000
    times = np.arange(rate_hz) / rate_hz
    pitch = 140 - 30 * times
    phase = 2 * np.pi * np.cumsum(pitch) / rate_hz
    voice = np.zeros(rate_hz)
    for number in range(1, 30):
        hz = number * 125
        gain = np.exp(-(((hz - 700) / 200) ** 2)) + 0.6 * np.exp(-(((hz - 1200) / 250) ** 2)) + 0.02
        voice += gain * np.sin(number * phase)
    syllables = np.clip(np.sin(2 * np.pi * 3 * times), 0, 1) ** 0.5
    spoken = 9000 * voice * syllables / np.abs(voice).max()
    quiet = np.random.default_rng(0).standard_normal(rate_hz) * 20
    return np.asarray(np.concatenate([quiet, spoken + quiet, quiet]), np.int16)


def silence(seconds: float, rate_hz: int = 24_000) -> "np.ndarray[Any, np.dtype[np.int16]]":
    """Digital silence: int16 [n]."""
    return np.zeros(round(seconds * rate_hz), np.int16)
