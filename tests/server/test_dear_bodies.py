"""Bodies that are dear to look at: each costs the gateway little, and holds nobody up."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.api.doors import ONE_SHOT
from support.fakes.served import Served
from support.hostile.dear_bodies import DEAR, REFUSED_BY_A_STAGE, Dear, chat

# Some took the gateway's process minutes. What is left is mostly reading up to 32 MiB.
MAX_CPU_S = 3.0
MAX_HELD_UP_S = 3.0
MAX_ERROR_BYTES = 2048
MAX_LOG_BYTES = 16 << 10
MAX_GROWTH_BYTES = 400 << 20  # a few bodies that Python's allocator keeps
JSON = {"content-type": "application/json"}
OF_THE_GATEWAY = [one for one in DEAR if one not in REFUSED_BY_A_STAGE]


def cpu_seconds(server: Served) -> float:
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def num_bytes(file: Path) -> int:
    return file.stat().st_size


def generations(server: Served) -> dict[str, int]:
    stages = httpx.get(f"{server.url}/health").json()["stages"]
    return {name: stage["generation"] for name, stage in stages.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(tmp_path_factory.mktemp("served") / "log")
    yield running
    running.process.terminate()
    running.process.wait(600)


@pytest.fixture
async def http(server: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=ONE_SHOT) as client:
        yield client


async def post(http: httpx.AsyncClient, dear: Dear, body: bytes) -> httpx.Response:
    headers = {"content-type": dear.content_type}
    return await http.post(dear.path, content=body, headers=headers)


@pytest.mark.parametrize("dear", OF_THE_GATEWAY, ids=lambda dear: dear.name)
async def test_a_dear_body_costs_little_and_its_error_is_short(
    dear: Dear, server: Served, http: httpx.AsyncClient
) -> None:
    before, logged = generations(server), num_bytes(server.log)
    body = dear.make()
    spent = cpu_seconds(server)
    response = await post(http, dear, body)
    spent = cpu_seconds(server) - spent
    assert response.status_code == dear.status, response.text
    assert spent < MAX_CPU_S
    if dear.status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert len(response.content) < MAX_ERROR_BYTES
    assert num_bytes(server.log) - logged < MAX_LOG_BYTES
    plain = await http.post("/v1/chat/completions", content=chat(), headers=JSON)
    assert plain.status_code == 200, plain.text
    assert before == generations(server)


async def test_while_dear_bodies_come_others_are_answered_and_memory_comes_back(
    server: Served, http: httpx.AsyncClient
) -> None:
    gateway = psutil.Process(server.process.pid)
    before, size = generations(server), gateway.memory_info().rss
    slowest = 0.0
    bodies = [(dear, dear.make()) for dear in OF_THE_GATEWAY[::3]]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(post(http, *one)) for one in bodies]
        while not all(task.done() for task in tasks):
            started, busy_s = time.monotonic(), cpu_seconds(server)
            assert (await http.get("/health")).status_code == 200
            # The machine may hold both up: what the gateway does itself takes time and processor.
            held_up_s = min(time.monotonic() - started, cpu_seconds(server) - busy_s)
            slowest = max(slowest, held_up_s)
            await asyncio.sleep(0.02)
    assert [task.result().status_code for task in tasks] == [dear.status for dear, _ in bodies]
    assert slowest < MAX_HELD_UP_S
    assert gateway.memory_info().rss - size < MAX_GROWTH_BYTES
    assert before == generations(server)
