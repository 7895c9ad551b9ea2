"""`make soak-bagel`: clients of the tiny BAGEL that hang up in every phase of a request.

`--cancels` of them hang up, in turns within 0.1 s, while the model thinks, while keys and values
wait for memory, at the first step and after the last. Each phase but the first is seen in the
request's own stream or trace. One in five requests is not given up: its image must equal the solo
run's. At the end nothing may be held, no file, descriptor or stage's generation may be new.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import yaml
from rich.console import Console
from soak import memory_kb
from support.chaos import open_files, open_targets
from support.pictures import pixels_of
from support.server import TinyServer, check_that_nothing_is_held, running_server

from omnistage.connectors.sweep import PREFIX
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.bagel.checkpoint.tiny import write_tiny_bagel

NUM_CLIENTS = 10
TOKEN_BYTES = 3 * 2 * 32 * 4  # of the tiny model: layers, keys and values, a head, float32
ROOM_TOKENS = 80  # in the memory of the pipeline's stage: fewer than the clients' prompts have
PATIENCE_S = 300.0
INTERVAL_S = 0.05  # between two looks at a request's trace
PROMPTS: list[str | list[str]] = [
    "a cat",
    "a boat on the sea, in oil",
    [f"cat number {number}" for number in range(4)],
]
THINK = {"think": True, "max_think_tokens": 1000}
ENDLESS = 1000  # steps: they take minutes
PHASES = ("sent", "thinking", "keys", "flow", "decoding")


@contextmanager
def bagel_server(log: Path) -> Iterator[TinyServer]:
    """Serve a tiny BAGEL whose requests wait for memory of each other's keys and values."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_bagel(folder / "tiny")
        graph = yaml.safe_load((GRAPHS / "bagel_tiny.yaml").read_text())
        graph["stages"]["dit"]["options"] = {"kv_gib": ROOM_TOKENS * TOKEN_BYTES / (1 << 30)}
        (folder / "graph.yaml").write_text(yaml.safe_dump(graph))
        options = "--model", str(folder / "tiny")
        with running_server(str(folder / "graph.yaml"), log, *options) as server:
            yield server


@dataclass
class Soak:
    """The events so far."""

    server: TinyServer
    client: httpx.AsyncClient
    num_cancels: int
    numbers: Iterator[int] = field(default_factory=itertools.count)
    done: Counter[str] = field(default_factory=Counter)
    num_answered: int = 0  # before their clients left
    num_finished: int = 0
    expected: list[list[npt.NDArray[np.uint8]]] = field(default_factory=list)

    async def draw(self, prompt: str | list[str], name: str, **more: Any) -> httpx.Response:
        """Ask for images by a request of this name."""
        body = {"prompt": prompt, "size": "64x64", "num_inference_steps": 3, "seed": 1, **more}
        url = f"{self.server.url}/v1/images/generations"
        return await self.client.post(url, json=body, headers={"x-request-id": name})

    async def pictures(self, index: int) -> list[npt.NDArray[np.uint8]]:
        """All of a request that is not given up."""
        answer = await self.draw(PROMPTS[index], f"whole-{next(self.numbers)}")
        assert answer.status_code == 200, answer.text
        return [pixels_of(one["b64_json"]) for one in answer.json()["data"]]

    async def check(self, index: int) -> None:
        """Compare a request's images with the solo run's."""
        pictures = await self.pictures(index)
        for one, wanted in zip(pictures, self.expected[index], strict=True):
            assert np.abs(one.astype(int) - wanted.astype(int)).max() <= 1, PROMPTS[index]
        self.num_finished += 1

    async def run_client(self) -> None:
        """One request after another from the same seat."""
        while self.done.total() < self.num_cancels:
            rounds, turn = divmod(next(self.numbers), len(PHASES) + 1)
            async with asyncio.timeout(PATIENCE_S):
                if turn == len(PHASES):
                    await self.check(rounds % len(PROMPTS))
                else:
                    await self.hang_up(PHASES[turn], rounds)

    async def hang_up(self, phase: str, rounds: int) -> None:
        """Leave a request as soon as it is in its phase, and count where it was seen last."""
        name = f"{phase}-{rounds}"
        if phase == "thinking":
            is_left = await self._leave_a_thought(name, rounds % 10)
        else:
            is_left = await self._leave_an_image(phase, name, rounds)
        if is_left:
            self.done[await self._seen(name)] += 1
        else:
            self.num_answered += 1

    async def _leave_an_image(self, phase: str, name: str, rounds: int) -> bool:
        """Return whether the client left before the answer."""
        num_steps = 1 if phase == "decoding" else ENDLESS
        prompt = PROMPTS[rounds % len(PROMPTS)]
        asking = asyncio.ensure_future(self.draw(prompt, name, num_inference_steps=num_steps))
        if phase == "sent":
            await asyncio.wait([asking], timeout=rounds % 10 / 100)
        else:
            while not asking.done() and not await self._is_in(phase, name):
                await asyncio.wait([asking], timeout=INTERVAL_S)
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            assert asking.result().status_code == 200, asking.result().text
        return asking.cancelled()

    async def _leave_a_thought(self, name: str, num_pieces: int) -> bool:
        """Return whether the client left before the answer."""
        message = {"role": "user", "content": "A small boat."}
        body = {"messages": [message], "modalities": ["text", "image"], "stream": True}
        body |= {"size": "64x64", "extra": THINK}
        url, headers = f"{self.server.url}/v1/chat/completions", {"x-request-id": name}
        async with self.client.stream("POST", url, json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if "reasoning_content" in line and (num_pieces := num_pieces - 1) < 0:
                    return True
        return False

    async def _marks(self, name: str) -> set[tuple[str, str]]:
        answer = await self.client.get(f"{self.server.url}/admin/traces/{name}")
        way = answer.json()["timeline"] if answer.status_code == 200 else []
        return {(one["stage"], one["event"]) for one in way}

    async def _is_in(self, phase: str, name: str) -> bool:
        marks = await self._marks(name)
        wanted = {
            "keys": ("dit", "received"),  # it is reported while a request waits for memory
            "flow": ("dit", "first_step"),
            "decoding": ("dit", "last_step"),
        }
        return wanted[phase] in marks

    async def _seen(self, name: str) -> str:
        """Return where a request was when its client left, as far as its stages have told."""
        marks = await self._marks(name)
        for where, mark in {
            "dit, decoding": ("dit", "last_step"),
            "dit, flow": ("dit", "first_step"),
            "dit, keys awaited": ("dit", "received"),
            "llm, thinking": ("llm", "first_token"),
        }.items():
            if mark in marks:
                return where
        return "llm, queued or reading"


def files_of(server: TinyServer) -> list[str]:
    """Names of the files in the memory that the server's processes share."""
    opened = {Path(one) for targets in open_targets(server).values() for one in targets}
    runs = {one.parent for one in opened if one.parent.name.startswith(PREFIX)}
    assert runs
    return sorted(str(file) for run in runs for file in run.rglob("*"))


async def run(server: TinyServer, num_cancels: int, console: Console) -> None:
    """Soak and report."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
        soak = Soak(server, client, num_cancels)
        soak.expected = [await soak.pictures(index) for index in range(len(PROMPTS))]
        soak.numbers = itertools.count()
        generations, began_at = server.generations(), time.monotonic()
        descriptors, kb, files = open_files(server), memory_kb(server), files_of(server)
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_CLIENTS):
                group.create_task(soak.run_client())
        took_s = time.monotonic() - began_at
        await asyncio.to_thread(check_that_nothing_is_held, server)
        for index in range(len(PROMPTS)):
            await soak.check(index)
    assert server.generations() == generations
    assert files_of(server) == files
    console.print(json.dumps(dict(soak.done), indent=1), f"{sum(soak.done.values())} hung up,")
    console.print(f"{soak.num_answered} were answered before they could;")
    console.print(f"{soak.num_finished} equal their solo run; {took_s:.0f} s; nothing is held")
    console.print("descriptors before, after", descriptors, open_files(server))
    console.print("KB before, after", kb, memory_kb(server))


def main() -> int:
    """Write a tiny checkpoint, serve it, soak it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancels", type=int, default=1000)
    parser.add_argument("--log", type=Path, default=Path(".cache/soak-bagel.log"))
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    with bagel_server(given.log) as server:
        asyncio.run(run(server, given.cancels, Console(width=120)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
