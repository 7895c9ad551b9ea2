"""`make soak`: twice the clients that a tiny server can serve at once, some rude, for minutes.

A third of the requests are cancelled at a random moment, a tenth are never read. Every answer that
finishes must equal its solo run, nothing may hang, and memory must stay flat after a warm-up.

With `ARGS=--hostile`: plain requests at a fixed rate, first alone, then beside hostile ones of many
classes, three of ten in all, for an hour. It fails if any is answered with a 5xx that is not
promised, if plain requests' p99 more than doubles, if memory grows or if a stage starts again.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table
from support.api.prompts import QUESTIONS
from support.faults.chaos import NUM_STREAMS, chaos_graph, is_there, open_files, victims
from support.hostile.bodies import Target
from support.hostile.soak import HostileSoak
from support.servers.image_requests import picture_server
from support.servers.server import Reply, TinyServer, assert_same_sound, running_server

from omnistage.connectors.sweep import DEFAULT_ROOT, PREFIX
from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

NUM_CLIENTS = 4 * NUM_STREAMS  # twice the sequences of an engine
CANCELLED, UNREAD = 1 / 3, 1 / 10
HANG_S = 60.0
PATIENCE_S = 20.0  # with a stage that does not answer: nothing is killed here
PAGE_KB = 4
PLAIN_PER_S = {"omni": 2.0, "pictures": 1.0}
LONG = {
    "max_completion_tokens": 200,
    "ignore_eos": True,
    "stage_params": {"talker": {"temperature": 0, "max_tokens": 300, "ignore_eos": True}},
}


@dataclass
class Soak:
    """The events so far."""

    server: TinyServer
    expected: dict[str, Reply]
    done: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    async def client(self, seed: int, until: float) -> None:
        """One client after another from the same seat."""
        chance = random.Random(seed)
        while time.monotonic() < until:
            question = chance.choice(list(self.expected))
            draw = chance.random()
            act: Callable[[str, random.Random], Awaitable[None]] = self.finish
            if draw < CANCELLED:
                act = self.cancel
            elif draw < CANCELLED + UNREAD:
                act = self.ignore
            started = time.monotonic()
            async with asyncio.timeout(HANG_S):
                await act(question, chance)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    async def finish(self, question: str, chance: random.Random) -> None:
        """A whole answer, equal to the solo run."""
        messages = next(q.messages for q in QUESTIONS if q.name == question)
        ask = self.server.stream if chance.random() < 0.5 else self.server.ask
        reply, expected = await ask(messages), self.expected[question]
        assert reply.text == expected.text, question
        assert reply.codes.tolist() == expected.codes.tolist(), question
        assert_same_sound(reply.pcm, expected.pcm)
        self.done["finished"] += 1

    async def cancel(self, question: str, chance: random.Random) -> None:
        """A client that hangs up, streaming or waiting."""
        messages = next(q.messages for q in QUESTIONS if q.name == question)
        patience_s = chance.expovariate(2.0)
        self.done["cancelled"] += 1
        if chance.random() < 0.5:
            try:
                async with httpx.AsyncClient(timeout=patience_s) as client:
                    url = f"{self.server.url}/v1/chat/completions"
                    await client.post(url, json=self.server.body(messages, **LONG))
            except httpx.TimeoutException:
                return
        hang_up_at = time.monotonic() + patience_s
        async with aclosing(self.server.events(messages, **LONG)) as events:
            async for _ in events:
                if time.monotonic() > hang_up_at:
                    return

    async def ignore(self, question: str, chance: random.Random) -> None:
        """A client that never reads; the server has to cut it off."""
        messages = next(q.messages for q in QUESTIONS if q.name == question)
        body = json.dumps(self.server.body(messages, stream=True, **LONG)).encode()
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await asyncio.sleep(chance.uniform(5, 40))
        writer.close()
        del reader
        self.done["unread"] += 1


def memory_kb(server: TinyServer) -> dict[str, int]:
    """Resident KiB of every process of the server, and of its shared memory."""
    pids = {"server": server.process.pid}
    pids |= {str(v): v.pid for v in victims(server) if v.role != "tracker" and is_there(v.pid)}
    kb = {
        name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB
        for name, pid in pids.items()
    }
    files = DEFAULT_ROOT.glob(f"{PREFIX}{server.process.pid}-*/*")
    kb["shared memory"] = sum(file.stat().st_blocks for file in files) // 2
    return kb


async def run(server: TinyServer, minutes: float, console: Console) -> None:
    """Soak and report."""
    asked = [question for question in QUESTIONS if question.name != "video"]
    expected = {question.name: await server.ask(question.messages) for question in asked}
    soak = Soak(server, expected)
    started = time.monotonic()
    until = started + 60 * minutes
    samples = []
    async with asyncio.TaskGroup() as group:
        clients = [
            group.create_task(soak.client(seed, until), name=f"client {seed}")
            for seed in range(NUM_CLIENTS)
        ]
        while not all(client.done() for client in clients):
            samples.append((time.monotonic() - started, memory_kb(server), open_files(server)))
            await asyncio.sleep(5)
    await asyncio.sleep(5)
    health = server.health()
    held = {name: {**stage["held"], "running": stage["running"]} for name, stage in health.items()}
    assert not any(count for counts in held.values() for count in counts.values()), held
    assert all(stage["generation"] == 1 for stage in health.values())
    samples.append((time.monotonic() - started, memory_kb(server), open_files(server)))
    console.print(dict(soak.done), f"slowest {soak.slowest_s:.1f} s", f"{minutes:g} minutes")
    marks = [samples[int(share * (len(samples) - 1))] for share in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    table = Table("MiB (descriptors)", *(f"{at / 60:.1f} min" for at, _, _ in marks))
    for name in samples[-1][1]:
        cells = [f"{kb[name] / 1024:.1f} ({files.get(name, 0)})" for _, kb, files in marks]
        table.add_row(name, *cells)
    console.print(table)


def soak_hostile(kind: str, asked: argparse.Namespace, folder: Path) -> bool:
    """Serve a tiny model of one kind and be hostile to it; whether it stood."""
    minutes, seed, log = asked.minutes or 60, asked.seed, asked.log
    rate = asked.rate or PLAIN_PER_S[kind]
    console = Console(width=120)
    console.print(f"{kind}: {minutes:g} minutes, seed {seed}")
    with contextlib.ExitStack() as stack:
        if kind == "omni":
            write_tiny_checkpoint(folder / "tiny", 0)
            options = ("--model", str(folder / "tiny"), "--client-buffer-mb", "1")
            graph = str(chaos_graph(folder, hang_s=PATIENCE_S))
            server = stack.enter_context(running_server(graph, log, *options))
        else:
            write_tiny("qwen-image", folder / "tiny")
            serving = picture_server("diffusers.yaml", folder / "tiny", folder)
            server = stack.enter_context(serving)
        url = httpx.URL(server.url)
        target = Target(url.host, url.port or 80, server.model, makes_images=kind == "pictures")
        hostile = HostileSoak(server, target, random.Random(seed), rate)
        return asyncio.run(hostile.run(minutes, console))


def main() -> int:
    """Write a tiny checkpoint, serve it, soak it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, help="10; with --hostile 60 for each server")
    parser.add_argument("--log", type=Path, default=Path(".cache/soak.log"))
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--server", choices=("omni", "pictures", "both"), default="omni")
    parser.add_argument("--rate", type=float, help="plain requests a second of --hostile")
    parser.add_argument("--seed", type=int, default=0, help="of hostile requests")
    arguments = parser.parse_args()
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    if arguments.hostile:
        kinds = tuple(PLAIN_PER_S) if arguments.server == "both" else (arguments.server,)
        stood = []
        for kind in kinds:
            with tempfile.TemporaryDirectory() as name:
                stood.append(soak_hostile(kind, arguments, Path(name)))
        return 0 if all(stood) else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_checkpoint(folder / "tiny", 0)
        options = ("--model", str(folder / "tiny"), "--client-buffer-mb", "1")
        graph = chaos_graph(folder, hang_s=PATIENCE_S)
        with running_server(str(graph), arguments.log, *options) as server:
            asyncio.run(run(server, arguments.minutes or 10, Console(width=120)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
