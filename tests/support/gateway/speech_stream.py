"""A client of the WebSocket that speaks a text while it comes."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from support.fakes.stages import SAMPLES_PER_FRAME
from support.gateway.serving import MODEL, RunningGateway
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from omnistage.stages.messages.to_gateway import Speech

PATH = "/v1/audio/speech/stream"
CONFIG = {"type": "session.config", "model": MODEL, "voice": "ethan", "response_format": "pcm"}
PIECES = Speech(takes_pieces=True)


@contextlib.contextmanager
def opened(gateway: RunningGateway, **options: Any) -> Iterator[ClientConnection]:
    url = gateway.url.replace("http", "ws", 1) + PATH
    with connect(url, open_timeout=600, close_timeout=2, compression=None, **options) as ws:
        yield ws
    gateway.wait_until_idle()


def say(ws: ClientConnection, kind: str, **fields: Any) -> None:
    ws.send(json.dumps({"type": kind, **fields}))


def configured(ws: ClientConnection, **more: Any) -> None:
    ws.send(json.dumps({**CONFIG, **more}))


def heard(ws: ClientConnection) -> dict[str, Any] | bytes:
    got = ws.recv(timeout=600)
    return got if isinstance(got, bytes) else json.loads(got)


def event(ws: ClientConnection) -> dict[str, Any]:
    got = heard(ws)
    assert isinstance(got, dict), got
    return got


def until_done(ws: ClientConnection) -> tuple[bytes, list[dict[str, Any]]]:
    """The sound and the events up to the end of an answer."""
    sound, events = b"", []
    while True:
        got = heard(ws)
        if isinstance(got, bytes):
            sound += got
        else:
            events.append(got)
            if got["type"] == "session.done":
                return sound, events


def code_of(ws: ClientConnection) -> int:
    """With which code the connection is closed, after all that comes before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            ws.recv(timeout=600)
    assert ws.close_code is not None
    return ws.close_code


def samples(num_frames: int) -> bytes:
    return np.arange(num_frames * SAMPLES_PER_FRAME, dtype="<i2").tobytes()
