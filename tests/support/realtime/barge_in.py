"""Speaking into an answer of a real server: how long its stages go on."""

import time
from dataclasses import dataclass
from typing import Any

import httpx
from support.realtime.client import PATH, Talk, speech_like
from support.servers.server import VERIFY, TinyServer
from websockets.sync.client import connect

# What a request holds while it is computed; credit is given back as the stage behind confirms it.
COMPUTED = ("rows", "late_inputs", "blocks", "streams", "late_rows", "tasks")
PATIENCE_S = 600.0
PIECE = 480  # samples: 20 ms


@dataclass(frozen=True)
class BargeIn:
    """One of them: ms from speech_started until each stage held nothing, and the response."""

    idle_ms: dict[str, float]
    response: dict[str, Any]


def barge_in(server: TinyServer) -> BargeIn | None:
    """Speak into an answer; None if it was over before that was heard.

    Fails if a delta comes behind speech_started.
    """
    url = server.url.replace("http", "ws", 1) + PATH
    with (
        httpx.Client(verify=VERIFY) as client,
        connect(url, compression=None, max_size=None, close_timeout=5) as ws,
    ):
        talk = Talk(ws)
        talk.until("session.created")
        detection = {"type": "server_vad", "threshold": 0.2}
        talk.update(audio={"input": {"turn_detection": detection}})
        talk.write("Tell me of the sea.")
        talk.say("response.create")
        talk.until("response.output_audio.delta")
        voiced = speech_like()[24_000:28_000]  # a syllable: no pause begins an answer ahead
        for start in range(0, len(voiced), PIECE):
            talk.append(voiced[start : start + PIECE])
        talk.until("input_audio_buffer.speech_started")
        started_at = time.monotonic()
        if talk.told("response.done"):
            return None
        idle_ms = when_idle(server, client, started_at)
        talk.say("input_audio_buffer.clear")
        num_before = len(talk.events)
        response = talk.until("response.done")["response"]
        talk.until("input_audio_buffer.cleared")
        behind = [event["type"] for event in talk.events[num_before:]]
        assert not [kind for kind in behind if kind.endswith(".delta")], behind
        talk.order.end()
    return BargeIn(idle_ms, response)


def when_idle(server: TinyServer, client: httpx.Client, since: float) -> dict[str, float]:
    """When each stage was first seen to hold nothing that is computed, in ms."""
    found: dict[str, float] = {}
    while True:
        stages = client.get(f"{server.url}/health").json()["stages"]
        now_ms = 1000 * (time.monotonic() - since)
        for name, stage in stages.items():
            if not stage["running"] and not any(stage["held"][what] for what in COMPUTED):
                found.setdefault(name, now_ms)
        if len(found) == len(stages):
            return found
        assert now_ms < 1000 * PATIENCE_S, stages
