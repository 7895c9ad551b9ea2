"""`make realtime-load`: sessions of /v1/realtime beside each other, and what they cost the gateway.

Users speak in real time: a second of speech, silence, and the next turn once they have the answer;
every third turn speaks into the answer. The gateway runs in a process of its own: over fake stages,
which answer at once, or with `--tiny` as `omnistage serve` over the tiny model. Fails if a session
got less than half of the median's audio, or failed, or if the memory or the lag is above its bound.

The voice is synthesized, and Silero's model soon takes its repetitions for noise: turns are those
of loudness. Over fake stages Silero's model judges all the same, for what it costs.

`--barge-ins 50` instead interrupts answers of the tiny model, one after the other.
"""

import argparse
import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from realtime_servers import Memory, fakes, tiny
from support.printing import say
from support.realtime.barge_in import BargeIn, barge_in
from support.realtime.client import silence, speech_like
from support.servers.server import TinyServer
from websockets.asyncio.client import connect

PIECE_S = 0.1
MAX_LAG_MS = 20.0  # p99 of the loop's lag
# Memory of a session: itself, and its user's speech, which is kept, sent and resampled.
SESSION_MB, MB_A_SECOND = 2.0, 4 * 48_000 / (1 << 20)
OPEN_TIMEOUT_S = 60.0


@dataclass
class User:
    """One session: the audio that it got and sent, its answers, how long each took to begin."""

    audio_s: float = 0.0
    spoken_s: float = 0.0
    num_answers: int = 0
    waits_s: list[float] = field(default_factory=list)
    late_deltas: int = 0  # of an answer that somebody spoke into
    failures: list[str] = field(default_factory=list)

    async def talk(self, url: str, until_s: float) -> None:
        """Speak and listen until the loop's time has come."""
        loop = asyncio.get_running_loop()
        quiet = [as_event(one) for one in pieces_of(silence(PIECE_S))]
        speech = [as_event(one) for one in pieces_of(speech_like())]
        async with connect(url, max_size=None, open_timeout=OPEN_TIMEOUT_S) as ws:
            self._done, self._delta = asyncio.Event(), asyncio.Event()
            listening = asyncio.create_task(self._listen(ws))
            turn, next_s = 0, loop.time()
            while loop.time() < until_s:
                turn += 1
                self._done.clear()
                self._delta.clear()
                is_heard = self._delta if turn % 3 == 2 else self._done
                script = iter(speech)
                while not is_heard.is_set() and loop.time() < until_s:
                    piece = next(script, None)
                    self.spoken_s += 0 if piece is None else PIECE_S
                    await ws.send(piece or quiet[0])
                    next_s += PIECE_S
                    await asyncio.sleep(max(0.0, next_s - loop.time()))
            listening.cancel()

    async def _listen(self, ws: Any) -> None:
        stopped_s, is_spoken_into = 0.0, False
        async for frame in ws:
            event = json.loads(frame)
            match event["type"]:
                case "response.output_audio.delta":
                    self.audio_s += len(event["delta"]) * 3 / 4 / 48_000
                    self.late_deltas += is_spoken_into
                    if not self._delta.is_set():
                        self.waits_s.append(time.monotonic() - stopped_s)
                    self._delta.set()
                case "input_audio_buffer.speech_started":
                    is_spoken_into = True
                case "response.created":
                    is_spoken_into = False
                case "input_audio_buffer.speech_stopped":
                    stopped_s = time.monotonic()
                case "response.done":
                    self.num_answers += 1
                    if event["response"]["status"] == "failed":
                        self.failures.append(str(event["response"]["status_details"]))
                    self._done.set()
                case "error":
                    self.failures.append(str(event["error"]))


def pieces_of(samples: "np.ndarray[Any, np.dtype[np.int16]]") -> Iterator[bytes]:
    """Cut audio of 24 kHz as it is sent."""
    size = round(PIECE_S * 24_000)
    for start in range(0, len(samples), size):
        yield samples[start : start + size].astype("<i2").tobytes()


def as_event(piece: bytes) -> str:
    """Return the event that sends a piece."""
    audio = base64.b64encode(piece).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})


async def run(url: str, pid: int, num_sessions: int, seconds: float) -> tuple[list[User], Memory]:
    """Have sessions talk beside each other."""
    address = url.replace("http", "ws", 1) + "/v1/realtime"
    await User().talk(address, asyncio.get_running_loop().time() + 3)  # it loads Silero's model
    memory = Memory(pid)
    watching = asyncio.create_task(memory.watch())
    users = [User() for _ in range(num_sessions)]
    until_s = asyncio.get_running_loop().time() + seconds
    async with asyncio.TaskGroup() as group:
        for user in users:
            group.create_task(user.talk(address, until_s))
    watching.cancel()
    return users, memory


def check(users: Sequence[User], memory: Memory, seconds: float, figures: Any) -> list[str]:
    """Print what was measured; returns what is wrong with it."""
    sounds = sorted(user.audio_s for user in users)
    waits = np.array([wait for user in users for wait in user.waits_s])
    middle, grown_mb = median(sounds), memory.peak_mb - memory.start_mb
    say(f"{len(users)} sessions, {seconds:g} s, {sum(user.num_answers for user in users)} answers")
    say(f"audio of each: least {sounds[0]:.1f} s, median {middle:.1f} s, most {sounds[-1]:.1f} s")
    say(f"end of turn to audio: p50 {np.median(waits):.3f} s, p99 {np.percentile(waits, 99):.3f} s")
    say(f"memory: {memory.start_mb:.0f} MiB, {grown_mb / len(users):.2f} more a session")
    say(f"processor: {memory.used_cpu_s() / seconds:.2f} cores")
    wrong = [failure for user in users for failure in user.failures]
    late = sum(user.late_deltas for user in users)
    wrong += [f"{late} deltas after speech_started"] if late else []
    wrong += ["a session has under half of the median's audio"] if 2 * sounds[0] < middle else []
    bound_mb = SESSION_MB * len(users) + MB_A_SECOND * sum(user.spoken_s for user in users)
    say(f"bound of memory: {bound_mb / len(users):.2f} MiB a session")
    wrong += ["a session takes too much memory"] if grown_mb > bound_mb else []
    if figures is not None:
        lag_ms = 1000 * float(np.percentile(figures["lags_s"], 99))
        say(f"lag of the event loop: p99 {lag_ms:.1f} ms")
        say(f"detection of speech: {figures['judged_s'] / seconds:.3f} cores")
        wrong += ["the event loop lags"] if lag_ms > MAX_LAG_MS else []
    return wrong


def speak_into(server: TinyServer, count: int) -> None:
    """Interrupt so many answers; prints how long each stage went on."""
    made: list[BargeIn] = []
    while len(made) < count:
        made += [one for one in [barge_in(server)] if one is not None]
    for stage in made[0].idle_ms:
        idle_ms = [one.idle_ms[stage] for one in made]
        p50, p95 = np.percentile(idle_ms, (50, 95))
        say(f"{stage}: idle after {p50:.0f} ms (p50), {p95:.0f} ms (p95), {max(idle_ms):.0f} ms")


def main() -> None:
    """Run the sessions and check what they got."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--tiny", action="store_true", help="the tiny model, not fake stages")
    parser.add_argument("--barge-ins", type=int, help="of the tiny model, one after the other")
    given = parser.parse_args()
    if given.barge_ins:
        with tiny() as (_, _, server):
            speak_into(server, given.barge_ins)
        return
    num_sessions = given.sessions or (16 if given.tiny else 50)
    with (tiny if given.tiny else fakes)() as (url, pid, measuring):
        if not given.tiny:
            measuring[0]()
        users, memory = asyncio.run(run(url, pid, num_sessions, given.seconds))
        figures = None if given.tiny else measuring[1]()
        wrong = check(users, memory, given.seconds, figures)
    if wrong:
        sys.exit("\n".join(wrong[:8]))


if __name__ == "__main__":
    main()
