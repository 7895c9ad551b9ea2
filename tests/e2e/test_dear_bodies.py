"""Bodies that are dear to look at: each costs the gateway little, and holds nobody up."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.dear_bodies import DEAR, Dear, chat
from support.server import TinyServer

pytestmark = pytest.mark.engine

# Some took the gateway's process minutes. What is left is mostly reading up to 32 MiB.
MAX_CPU_S = 3.0
MAX_HELD_UP_S = 3.0
MAX_ERROR_BYTES = 2048
MAX_LOG_BYTES = 16 << 10
MAX_GROWTH_BYTES = 400 << 20  # a few bodies that Python's allocator keeps
JSON = {"content-type": "application/json"}


def cpu_seconds(server: TinyServer) -> float:
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def num_bytes(file: Path) -> int:
    return file.stat().st_size


def generations(server: TinyServer) -> dict[str, int]:
    return {name: stage["generation"] for name, stage in server.health().items()}


@pytest.fixture
async def http(server: TinyServer) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        yield client


async def post(http: httpx.AsyncClient, dear: Dear, body: bytes) -> httpx.Response:
    headers = {"content-type": dear.content_type}
    return await http.post(dear.path, content=body, headers=headers)


@pytest.mark.parametrize("dear", DEAR, ids=lambda dear: dear.name)
async def test_a_dear_body_costs_little_and_its_error_is_short(
    dear: Dear, server: TinyServer, http: httpx.AsyncClient, server_log: Path
) -> None:
    before, logged = generations(server), num_bytes(server_log)
    body = dear.make()
    spent = cpu_seconds(server)
    response = await post(http, dear, body)
    spent = cpu_seconds(server) - spent
    assert response.status_code == dear.status, response.text
    assert spent < MAX_CPU_S
    if dear.status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert len(response.content) < MAX_ERROR_BYTES
    assert num_bytes(server_log) - logged < MAX_LOG_BYTES
    plain = await http.post("/v1/chat/completions", content=chat(), headers=JSON)
    assert plain.status_code == 200, plain.text
    assert before == generations(server)


async def test_while_dear_bodies_come_others_are_answered_and_memory_comes_back(
    server: TinyServer, http: httpx.AsyncClient
) -> None:
    gateway = psutil.Process(server.process.pid)
    before, size = generations(server), gateway.memory_info().rss
    slowest = 0.0
    bodies = [(dear, dear.make()) for dear in DEAR[::3]]  # which would hold up this process
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(post(http, *one)) for one in bodies]
        while not all(task.done() for task in tasks):
            started = time.monotonic()
            assert (await http.get("/health")).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.sleep(0.02)
    assert [task.result().status_code for task in tasks] == [dear.status for dear, _ in bodies]
    assert slowest < MAX_HELD_UP_S
    assert gateway.memory_info().rss - size < MAX_GROWTH_BYTES
    assert before == generations(server)
