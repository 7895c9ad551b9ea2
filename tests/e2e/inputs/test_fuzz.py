"""Mutated bodies to the real server: no failure of ours, and no engine is the worse for it."""

import asyncio
from collections import Counter

import httpx
import pytest
from support.api.doors import ONE_SHOT
from support.api.prompts import question, text
from support.gateway.serving import MODEL
from support.hostile.fuzz import drawn, num_cases
from support.servers.server import TinyServer, assert_same_sound

pytestmark = pytest.mark.engine

COUNT = num_cases(300, 1000)
AT_ONCE = 16


async def test_no_body_makes_the_server_fail_or_kills_an_engine(server: TinyServer) -> None:
    messages = question("fine", [text("All well?")]).messages
    before = await server.ask(messages)
    generations = {name: stage["generation"] for name, stage in server.health().items()}
    statuses: Counter[int] = Counter()
    waiting = asyncio.Semaphore(AT_ONCE)
    name = server.model.encode()

    async def send(data: bytes) -> None:
        async with waiting:
            headers = {"content-type": "application/json"}
            body = data.replace(MODEL.encode(), name)
            response = await client.post("/v1/chat/completions", content=body, headers=headers)
        statuses[response.status_code] += 1
        assert response.status_code < 500, (data, response.text)
        if response.status_code == 200:
            assert b'"error"' not in response.content, data
        else:
            assert isinstance(response.json()["error"]["code"], str), data

    async with (
        httpx.AsyncClient(base_url=server.url, timeout=600, limits=ONE_SHOT) as client,
        asyncio.TaskGroup() as group,
    ):
        for data in drawn(COUNT):
            group.create_task(send(data))
    assert statuses.total() == COUNT
    assert statuses[200] > COUNT // 20, statuses
    assert statuses[400] > COUNT // 4, statuses
    after = await server.ask(messages)
    assert after.codes.tolist() == before.codes.tolist()
    assert_same_sound(after.pcm, before.pcm)
    assert generations == {name: stage["generation"] for name, stage in server.health().items()}
