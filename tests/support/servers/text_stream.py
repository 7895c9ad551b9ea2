"""A text that is sent piece by piece over the WebSocket that speaks it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import connect

PATH = "/v1/audio/speech/stream"


def address(url: str) -> str:
    """Of the WebSocket of a server."""
    return url.replace("http", "ws", 1) + PATH


async def streamed(
    url: str,
    pieces: Sequence[str],
    config: Mapping[str, Any],
    pause_s: float = 0.02,
    hears_each: bool = False,
) -> npt.NDArray[np.int16]:
    """The samples of one text; with `hears_each`, a piece follows sound of the one before it."""
    sound = b""
    async with connect(address(url)) as socket:
        told = {"type": "session.config", "response_format": "pcm", **config}
        await socket.send(json.dumps(told))
        for piece in pieces:
            await socket.send(json.dumps({"type": "input.text", "text": piece}))
            while hears_each:
                if isinstance(frame := await socket.recv(), bytes):
                    sound += frame
                    break
            await asyncio.sleep(pause_s)
        await socket.send(json.dumps({"type": "input.done"}))
        async for frame in socket:
            if isinstance(frame, bytes):
                sound += frame
            elif (event := json.loads(frame))["type"] == "session.done":
                assert event["status"] == "completed"
                break
    return np.frombuffer(sound, "<i2")
