"""A graph whose edges all go over TCP: the same answers, and links that are killed or hang."""

import asyncio
import json
import signal
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import QUESTIONS
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.oracles.reference import Reference
from support.servers.drafting import links
from support.servers.server import TinyServer
from support.waiting import wait_until

pytestmark = pytest.mark.engine

MAX_TOKENS, MAX_FRAMES = 16, 40
LONG: dict[str, Any] = {
    "stream": True,
    "max_completion_tokens": 300,
    "stage_params": {"talker": {"temperature": 0, "max_tokens": 600}},
}
TEXT: dict[str, Any] = {
    "modalities": ["text"],
    "audio": None,
    "max_completion_tokens": 200,
    "stage_params": {},
    "return_codes": False,
}


@pytest.fixture
def server(drafting: TinyServer) -> TinyServer:
    """Each of its edges has `connector: tcp`."""
    return drafting


async def test_answers_equal_the_reference_one_by_one_and_together(
    server: TinyServer, reference: Reference
) -> None:
    expected = [reference.answer(asked, MAX_TOKENS, MAX_FRAMES) for asked in QUESTIONS]
    replies = [await server.ask(asked.messages) for asked in QUESTIONS]
    replies += await asyncio.gather(*(server.stream(asked.messages) for asked in QUESTIONS))
    for reply, answer in zip(replies, expected * 2, strict=True):
        assert reply.text == answer.text
        assert np.array_equal(reply.codes, answer.codes)
        assert len(reply.pcm) == len(answer.pcm)
        assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4


def test_what_went_through_is_counted_at_both_ends(server: TinyServer) -> None:
    """Each chunk that the far node's ring brought was one of the near node's."""
    page = httpx.get(f"{server.url}/metrics").text
    for source, target in (("thinker", "talker"), ("talker", "code2wav")):
        sent, received = (
            count(page, f"omnistage_channel_{name}_total", source, target)
            for name in ("chunks", "received_chunks")
        )
        assert sent == received > 0


def count(page: str, metric: str, source: str, target: str) -> float:
    """Of the rows of an edge."""
    labels = (f'source="{source}"', f'target="{target}"', 'channel="rows"')
    lines = [line for line in page.splitlines() if line.startswith(f"{metric}{{")]
    (line,) = [line for line in lines if all(label in line for label in labels)]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize(
    ("number", "blow"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGSTOP)],
    ids=["near, killed", "far, killed", "near, stopped", "far, stopped"],
)
async def test_a_link_that_ends_fails_what_crosses_it_and_nothing_else(
    number: int, blow: signal.Signals, server: TinyServer, reference: Reference
) -> None:
    asked = QUESTIONS[0]
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/chat/completions"
        beside = asyncio.create_task(client.post(url, json=server.body(asked.messages, **TEXT)))
        asking = client.stream("POST", url, json=server.body(asked.messages, **LONG))
        with stopped(pid_of(server, "talker", "engine")):  # no answer with speech ends
            async with asking as spoken:
                lines = (line async for line in spoken.aiter_lines() if line.startswith("data: {"))
                await anext(lines)
                victim = links(server)[number]
                victim.send_signal(blow)
                last = [line async for line in lines][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "edge_lost"
        answered = await beside
        assert answered.status_code == 200, answered.text
    wait_until(lambda: victim.pid not in [one.pid for one in links(server)])
    wait_until(lambda: len(links(server)) == 2)
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
    reply = await server.ask(asked.messages)
    assert (reply.text, reply.codes.tolist()) == (answer.text, answer.codes.tolist())
    assert {stage["generation"] for stage in server.health().values()} == {1}
