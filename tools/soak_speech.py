"""`make soak-speech`: clients of a tiny model's speech, some rude, and kills in between.

`--tiny` names the model, as for `omnistage tiny`. A third of the requests hang up at a random
moment; with `--cancels N` the soak goes on until N have done so after their first sound. Every
answer that ends must equal its solo run, frame for frame and sample for sample within rounding.
With `--kill` every process below the server dies once, one after the other, and only requests that
were under way may fail then. At the end nothing may be held, no process may have grown, and no
stage may have started again that was not killed.
"""

import argparse
import asyncio
import base64
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from soak import memory_kb
from support.faults.chaos import victims
from support.servers.server import TinyServer, assert_same_sound, decoded, running_server

from omnistage.stage_configs.families import FAMILIES

NUM_CLIENTS = 12
CANCELLED = 1 / 3
HANG_S = 60.0
READY_S = 120.0
MAX_FRAMES = 60
ROUNDING = 1e-4  # of frames that are latents; codes are whole numbers
TEXTS = (
    "Hello.",
    "The second text is a little longer than the first one.",
    "Numbers such as 3.14 and 1,000 are read as they stand; so is an ellipsis...",
    "Zwei Sätze. Und noch einer!",
)


@dataclass(frozen=True)
class Spoken:
    """One answer as a client got it."""

    pcm: npt.NDArray[np.int16]
    codes: npt.NDArray[Any]


class Failed(Exception):
    """An answer that ended with an error."""


@dataclass
class Soak:
    """The events so far."""

    server: TinyServer
    expected: dict[str, Spoken] = field(default_factory=dict)
    num_cancels: int = 0  # at least
    done: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    may_fail: asyncio.Event = field(default_factory=asyncio.Event)

    def body(self, text: str) -> dict[str, Any]:
        """Greedy and with one seed, of which noise is drawn: every answer is the same."""
        talker = {"temperature": 0, "max_tokens": MAX_FRAMES}
        return {
            "model": self.server.model,
            "input": text,
            "response_format": "pcm",
            "stream_format": "sse",
            "return_codes": True,
            "seed": 0,
            "stage_params": {"talker": talker},
        }

    async def speak(self, text: str, patience_s: float | None = None) -> Spoken | None:
        """A whole answer; None if the client has hung up before its end. Raises Failed."""
        pcm, codes = b"", list[Any]()
        hang_up_at = None if patience_s is None else time.monotonic() + patience_s
        url = f"{self.server.url}/v1/audio/speech"
        async with (
            httpx.AsyncClient(timeout=HANG_S) as client,
            client.stream("POST", url, json=self.body(text)) as response,
        ):
            if response.status_code != 200:
                raise Failed((await response.aread()).decode())
            async for line in response.aiter_lines():
                if hang_up_at is not None and time.monotonic() > hang_up_at:
                    return None
                if line.startswith("data: "):
                    event = decoded(line)
                    if "error" in event:
                        raise Failed(str(event["error"]))
                    pcm += base64.b64decode(event.get("audio") or "")
                    codes += event.get("codes") or []
        return Spoken(np.frombuffer(pcm, "<i2"), np.array(codes))

    async def client(self, seed: int, until: float) -> None:
        """One request after another from the same seat."""
        chance = random.Random(seed)
        while time.monotonic() < until or self.done["cancelled"] < self.num_cancels:
            text = chance.choice(TEXTS)
            patience_s = chance.expovariate(2.0) if chance.random() < CANCELLED else None
            started = time.monotonic()
            await self.one(text, patience_s)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    async def one(self, text: str, patience_s: float | None) -> None:
        """One request: it ends well, or is given up, or fails because a process was killed."""
        could_fail = self.may_fail.is_set()
        try:
            async with asyncio.timeout(HANG_S):
                said = await self.speak(text, patience_s)
        except (Failed, httpx.TransportError):
            if not could_fail and not self.may_fail.is_set():
                raise
            self.done["failed by a kill"] += 1
            await asyncio.sleep(0.2)
            return
        self.done["cancelled" if said is None else "finished"] += 1
        if said is not None:
            expected = self.expected[text]
            assert said.codes.shape == expected.codes.shape, text
            assert np.abs(said.codes - expected.codes).max(initial=0) < ROUNDING, text
            assert_same_sound(said.pcm, expected.pcm)

    async def kill_all(self, every_s: float) -> int:
        """Each process below the server once; how many."""
        names = [(one.stage, one.role) for one in victims(self.server) if one.role != "tracker"]
        for name in names:
            await asyncio.sleep(every_s)
            found = [one for one in victims(self.server) if (one.stage, one.role) == name]
            if found:
                self.may_fail.set()
                os.kill(found[0].pid, signal.SIGKILL)
                await asyncio.sleep(1.0)
                await self._ready_again()
                self.may_fail.clear()
                self.done["kills"] += 1
        return len(names)

    async def _ready_again(self) -> None:
        deadline = time.monotonic() + READY_S
        async with httpx.AsyncClient(timeout=5) as client:
            while (await client.get(f"{self.server.url}/ready")).status_code != 200:
                assert time.monotonic() < deadline, "no stage came back"
                await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)  # requests that were refused meanwhile have heard of it


async def run(
    server: TinyServer, minutes: float, num_cancels: int, has_kills: bool, console: Console
) -> None:
    """Soak and report."""
    soak = Soak(server, num_cancels=num_cancels)
    for text in TEXTS:
        said = await soak.speak(text)
        assert said is not None
        soak.expected[text] = said
    started = time.monotonic()
    until = started + 60 * minutes
    samples = []
    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(soak.client(seed, until)) for seed in range(NUM_CLIENTS)]
        if has_kills:
            group.create_task(soak.kill_all(every_s=max(5.0, 60 * minutes / 12)))
        while not all(client.done() for client in clients):
            samples.append((time.monotonic() - started, memory_kb(server)))
            await asyncio.sleep(5)
    await asyncio.sleep(5)
    assert not server.held(), server.held()
    if not has_kills:
        assert all(stage["generation"] == 1 for stage in server.health().values())
    samples.append((time.monotonic() - started, memory_kb(server)))
    took = f"{(time.monotonic() - started) / 60:.1f} minutes"
    console.print(dict(soak.done), f"slowest {soak.slowest_s:.1f} s", took)
    marks = [samples[int(share * (len(samples) - 1))] for share in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    table = Table("MiB", *(f"{at / 60:.1f} min" for at, _ in marks))
    for name in samples[-1][1]:
        table.add_row(name, *(f"{kb.get(name, 0) / 1024:.1f}" for _, kb in marks))
    console.print(table)


def main() -> int:
    """Write a tiny checkpoint, serve it, soak it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", default="qwen3-tts")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--cancels", type=int, default=0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--log", type=Path, default=Path(".cache/soak-speech.log"))
    asked = parser.parse_args()
    asked.log.parent.mkdir(parents=True, exist_ok=True)
    writer = FAMILIES.part(asked.tiny, lambda family: family.tiny).write
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        resolve_name(writer)(folder, 0)
        with running_server(str(folder), asked.log) as server:
            soaking = run(server, asked.minutes, asked.cancels, asked.kill, Console(width=120))
            asyncio.run(soaking)
    return 0


if __name__ == "__main__":
    sys.exit(main())
