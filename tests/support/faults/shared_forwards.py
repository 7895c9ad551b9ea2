"""Requests to a denoiser behind another stage, whose images begin at the same time."""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from support.faults.chaos import victims
from support.faults.stopping import stopped
from support.servers.server import TinyServer
from support.servers.snapshots import reported_page
from support.waiting import until


@dataclass(frozen=True)
class Denoised:
    """Answers, how many forwards the denoiser made for them, and for how many requests each,
    added up.
    """

    answers: list[httpx.Response]
    num_forwards: float
    num_requests: float


async def denoised_at_once(
    server: TinyServer, first: str, asked: Sequence[Coroutine[Any, Any, httpx.Response]]
) -> Denoised:
    """Stop the stage `dit` until the stage `first` has made what it needs for all requests."""
    count, total = await asyncio.to_thread(forwards, server)
    wanted = server.health()[first]["requests_total"] + len(asked)

    def are_made() -> bool:
        stage = server.health()[first]
        return bool(stage["requests_total"] == wanted and not stage["running"])

    with stopped(pid_of(server, "dit", "worker")):
        running = [asyncio.create_task(one) for one in asked]
        await until(are_made)
    answers = await asyncio.gather(*running)
    now, requests = await asyncio.to_thread(forwards, server)
    return Denoised(answers, now - count, requests - total)


def forwards(server: TinyServer) -> tuple[float, float]:
    """Return how many forwards the denoiser made, and for how many requests, all added up."""
    page = reported_page(server)
    found = re.findall(
        r"^omnistage_denoising_batch_requests_(count|sum)\S* (\S+)$", page, re.MULTILINE
    )
    values = {name: float(value) for name, value in found}
    return values.get("count", 0), values.get("sum", 0)


def pid_of(server: TinyServer, stage: str, role: str) -> int:
    """Return a process of a stage."""
    return next(v.pid for v in victims(server) if (v.stage, v.role) == (stage, role))
