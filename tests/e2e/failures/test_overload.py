"""More clients than the queue takes, and clients that do not read."""

import asyncio
import logging
import resource
import socket
import time
from collections import Counter
from pathlib import Path

import httpx
import msgspec
import pytest
from support.api.prompts import image_part, picture, question, text
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.servers.server import MAX_QUEUE, TinyServer
from support.servers.snapshots import reported_page
from support.waiting import until

pytestmark = pytest.mark.engine

logger = logging.getLogger(__name__)

CLIENTS = 200
SLOW = 6
LONG_S = 300.0  # for all that slow clients want, on a busy machine
MIB = 1 << 20
JSON = {"content-type": "application/json"}


def memory(server: TinyServer) -> int:
    """Bytes of the gateway's process."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def test_every_client_gets_a_full_answer_or_a_time_to_come_back(server: TinyServer) -> None:
    parts = [image_part(picture(256, 256)), text("What is it?")]
    messages = question("picture", parts).messages
    alone = await server.ask(messages)
    body = server.body(messages)
    statuses: Counter[int] = Counter()
    before = peak = memory(server)
    started = time.monotonic()

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal peak
        response = await client.post("/v1/chat/completions", json=body)
        peak = max(peak, memory(server))
        statuses[response.status_code] += 1
        if response.status_code == 200:
            answer = response.json()["choices"][0]
            assert answer["message"]["audio"]["transcript"] == alone.text
            assert len(answer["message"]["audio"]["codes"]) == len(alone.codes)
            assert answer["finish_reason"]
            return
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "server_overloaded"
        assert int(response.headers["retry-after"]) >= 1

    limits = httpx.Limits(max_connections=CLIENTS)
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        with stopped(pid_of(server, "thinker", "engine")):  # no place becomes free
            for _ in range(CLIENTS):
                group.create_task(ask(client))
            await until(lambda: statuses[503])
    logger.info("%s in %.1f s", dict(statuses), time.monotonic() - started)
    logger.info("gateway: %d MiB, at most %d MiB", before // MIB, peak // MIB)
    assert statuses.total() == CLIENTS
    assert statuses[200] >= MAX_QUEUE
    assert statuses[503] > 0
    assert peak - before < 512 * MIB
    again = await server.ask(messages)
    assert again.codes.tolist() == alone.codes.tolist()


def slow_client(server: TinyServer, body: bytes) -> socket.socket:
    """One that asks and does not read."""
    url = httpx.URL(server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((url.host, url.port))
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def num_spoken(server: TinyServer) -> int:
    """How many requests the talker has had."""
    count: int = server.health()["talker"]["requests_total"]
    return count


async def test_clients_that_do_not_read_hold_nobody_up(server: TinyServer) -> None:
    """They want more speech than a socket's buffers hold, and are more than an engine has seats.

    How long others wait beside them, `make soak` measures.
    """
    asked = question("fine", [text("All well?")]).messages
    alone, before = await server.ask(asked), memory(server)
    long = server.body(
        question("long", [text("Tell me all.")]).messages,
        stream=True,
        stage_params={"talker": {"max_tokens": 400, "min_tokens": 400, "temperature": 0}},
    )
    await asyncio.to_thread(reported_page, server)
    num_before = num_spoken(server)
    slow = [slow_client(server, msgspec.json.encode(long)) for _ in range(SLOW)]
    try:
        await until(lambda: num_spoken(server) == num_before + SLOW)
        beside = await server.ask(asked)
        # All ends though nobody has read what was made.
        await until(lambda: not any(one["running"] for one in server.health().values()), LONG_S)
        after = await server.ask(asked)
        grown = (memory(server) - before) // MIB
    finally:
        for connection in slow:
            connection.close()
    assert beside.codes.tolist() == after.codes.tolist() == alone.codes.tolist()
    assert grown < 512
