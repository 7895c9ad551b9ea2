"""Sampled answers: one seed, one answer, whatever else runs and in however many pieces a prompt is
prefilled.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from support.servers.server import TinyServer

from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine

STEP_TOKENS = (
    load_graph(GRAPHS / "qwen3_omni_tiny.yaml").stages["thinker"].engine["max_num_batched_tokens"]
)
SAMPLED_SPEECH = {"talker": {"max_tokens": 30, "ignore_eos": True}}


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def text_of(number: int, length: int) -> str:
    """Another one for each number, from its first letter on."""
    return f"{number} says ".ljust(length, "abcdefghij"[number % 10])


async def completed(server: TinyServer, prompt: str, **more: Any) -> Mapping[str, Any]:
    """A sampled completion."""
    body = {"model": server.model, "prompt": prompt, "temperature": 1, "max_tokens": 24, **more}
    async with httpx.AsyncClient(timeout=600) as client:
        response = await client.post(f"{server.url}/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: Mapping[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("length", [STEP_TOKENS - 56, STEP_TOKENS + 44])
async def test_four_seeded_speeches_at_once_equal_one_at_a_time(
    length: int, server: TinyServer
) -> None:
    """Together they are more than one step's tokens: some are prefilled in pieces."""
    asked = [
        (user(text_of(number, length)), {"seed": number, "stage_params": SAMPLED_SPEECH})
        for number in range(4)
    ]
    alone = [await server.ask(messages, **more) for messages, more in asked]
    together = await asyncio.gather(*(server.ask(messages, **more) for messages, more in asked))
    for one, other in zip(alone, together, strict=True):
        assert one.text == other.text
        assert len(one.codes) == 30
        assert np.array_equal(one.codes, other.codes)


async def test_a_seeded_text_in_pieces_equals_the_one_whose_prompt_is_cached(
    server: TinyServer,
) -> None:
    prompt = text_of(5, 2 * STEP_TOKENS + 44)
    pieces, cached = [await completed(server, prompt, seed=3) for _ in range(2)]
    hits = [answer["usage"]["prompt_tokens_details"] for answer in (pieces, cached)]
    assert [(hit or {}).get("cached_tokens", 0) > STEP_TOKENS for hit in hits] == [False, True]
    assert pieces["choices"][0]["text"] == cached["choices"][0]["text"]


async def test_a_seed_holds_beside_requests_without_one(server: TinyServer) -> None:
    alone = await completed(server, "Hello", seed=3)
    together = await asyncio.gather(
        completed(server, "Hello", seed=3),
        completed(server, text_of(6, STEP_TOKENS + 44)),
        completed(server, "Hello", temperature=0),
    )
    assert together[0]["choices"][0]["text"] == alone["choices"][0]["text"]


async def test_requests_without_a_seed_differ_beside_one_with(server: TinyServer) -> None:
    more = {"temperature": 2, "ignore_eos": True}  # else two may be the same by chance
    answers = await asyncio.gather(
        completed(server, "Hello", seed=3, **more),
        *(completed(server, "Hello", **more) for _ in range(3)),
    )
    assert len({answer["choices"][0]["text"] for answer in answers}) == 4
