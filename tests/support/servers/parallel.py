"""Tiny graphs whose engines have several ranks or lanes, and a blow to one of their processes."""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.faults.chaos import Stream, Victim, command_of, victims
from support.servers.server import TinyServer
from support.waiting import until

from omnistage.stage_configs.pick import GRAPHS

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 600  # of a stage with another: ranks that wait are busy


def parallel_graph(
    folder: Path, stage: str, sizes: dict[str, int], options: dict[str, Any] | None = None
) -> Path:
    """The tiny graph with these arguments of one stage's engine, and much patience."""
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    graph["stages"][stage]["engine"] |= sizes
    graph["stages"][stage].setdefault("options", {}).update(options or {})
    graph["deadlines"] = {
        "hang_s": 120,
        "first_chunk_s": PATIENCE_S,
        "next_chunk_s": PATIENCE_S,
    }
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


def sizes() -> dict[str, Any]:
    """Parallel sizes of the engines that some tests start, as `make parallel` says."""
    found: dict[str, Any] = json.loads(os.environ.get("OMNISTAGE_SIZES", "{}"))
    return found


def ranks(server: TinyServer, stage: str) -> list[Victim]:
    """The processes of a stage's engine that compute, in the order of their start."""
    engines = [one for one in victims(server) if (one.stage, one.role) == (stage, "engine")]
    named = [one for one in engines if "Worker" in " ".join(command_of(one.pid))]
    cores = [one for one in engines if "EngineCore" in " ".join(command_of(one.pid))]
    return sorted(named or cores, key=lambda one: one.pid)


@dataclass(frozen=True)
class Blow:
    """What the death of a rank did."""

    dead_s: float  # until the stage was said not to be ready
    speech: Stream
    text: Stream
    before: dict[str, int]  # generations
    after: dict[str, int]


async def strike_rank(server: TinyServer, stage: str) -> Blow:
    """Kill the last rank of a stage while one client hears speech and another reads a text."""
    before = server.generations()
    speech, text = Stream(has_audio=True), Stream(has_audio=False)
    running = [asyncio.create_task(one.run(server)) for one in (speech, text)]
    await asyncio.gather(speech.has_begun.wait(), text.has_begun.wait())
    victim = ranks(server, stage)[-1]
    struck_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    await until(lambda: not is_untouched(server, stage, before))
    dead_s = time.monotonic() - struck_at
    await asyncio.gather(*running)
    await until(lambda: is_back(server, stage, before))
    return Blow(dead_s, speech, text, before, server.generations())


def is_untouched(server: TinyServer, stage: str, before: dict[str, int]) -> bool:
    """Whether a stage is said to be ready, as before."""
    told = server.health()[stage]
    return bool(told["generation"] == before[stage] and told["state"] == "ready")


def is_back(server: TinyServer, stage: str, before: dict[str, int]) -> bool:
    """Whether a stage is ready again."""
    told = server.health()[stage]
    return bool(told["generation"] > before[stage] and told["state"] == "ready")


def collectives() -> set[str]:
    """The segments of vLLM's collectives on a CPU."""
    return {path.name for path in SHARED_MEMORY.glob("vllm_dist_*")}
