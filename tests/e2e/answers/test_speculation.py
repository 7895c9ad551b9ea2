"""A server whose thinker drafts, by the documentation's options: text, codes and samples are those
of transformers, which does not. What only images need is not installed here.
"""

import asyncio
import subprocess
import sys

import httpx
import numpy as np
import psutil
import pytest
from support.api.prompts import QUESTIONS
from support.blocked import BLOCKED
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.oracles.reference import Reference
from support.repository.metrics_docs import documented, exposed, families_in
from support.servers.drafting import OF_IMAGES
from support.servers.drafts import Drafted
from support.servers.server import TinyServer
from support.waiting import until

from omnistage.stages.reference.forced import Forced

pytestmark = pytest.mark.engine

MAX_TOKENS, MAX_FRAMES = 40, 60
ASKED = QUESTIONS[:6]
SPOKEN = {
    "max_completion_tokens": MAX_TOKENS,
    "stage_params": {"talker": {"temperature": 0, "max_tokens": MAX_FRAMES}},
}


@pytest.fixture
def server(drafting: TinyServer) -> TinyServer:
    return drafting


def test_it_starts_without_the_packages_of_images(server: TinyServer) -> None:
    assert {"diffusers", "accelerate", "greenlet", "peft", "ftfy"} <= OF_IMAGES
    variables = psutil.Process(server.process.pid).environ()
    assert set(variables[BLOCKED].split(",")) == OF_IMAGES
    found = subprocess.run([sys.executable, "-c", "import diffusers"], env=variables, stderr=-1)
    assert b"ModuleNotFoundError" in found.stderr


def drafted(server: TinyServer) -> Drafted:
    page = httpx.get(f"{server.url}/metrics").text
    return Drafted.of(families_in(page), stage="thinker")


async def test_answers_at_once_beside_one_that_is_cancelled_equal_transformers(
    server: TinyServer, reference: Reference
) -> None:
    before = drafted(server)
    endless = server.events(ASKED[0].messages, max_completion_tokens=600, ignore_eos=True)
    with stopped(pid_of(server, "thinker", "engine")):
        first = asyncio.ensure_future(anext(endless))
        asking = asyncio.gather(*(server.stream(one.messages, **SPOKEN) for one in ASKED))
        await until(lambda: server.health()["thinker"]["running"] == 1 + len(ASKED))
    await first
    await endless.aclose()  # hangs up
    for question, reply in zip(ASKED, await asking, strict=True):
        answer = reference.answer(question, MAX_TOKENS, MAX_FRAMES)
        assert reply.text == answer.text
        assert np.array_equal(reply.codes, answer.codes)
        assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4

    def has_both() -> bool:
        now = drafted(server)
        return now.accepted > before.accepted and now.rejected > before.rejected

    await until(has_both)  # a stage tells what it counts once a second


async def test_a_top_k_that_would_end_the_engine_is_refused_and_loses_nothing(
    server: TinyServer,
) -> None:
    running = asyncio.create_task(server.ask(ASKED[0].messages, **SPOKEN))
    body = {"messages": ASKED[1].messages, "max_completion_tokens": 8, "top_k": 5, "seed": 1}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        refused = await client.post("/v1/chat/completions", json={**body, "temperature": 1})
        assert refused.status_code == 400
        assert "top_k is not supported on a CPU" in refused.json()["error"]["message"]
        greedy = await client.post("/v1/chat/completions", json={**body, "temperature": 0})
        assert greedy.status_code == 200, greedy.text
    assert (await running).text


def test_the_documentation_lists_what_is_counted_of_drafts(server: TinyServer) -> None:
    page = exposed(httpx.get(f"{server.url}/metrics").text)
    counted = {name: about for name, about in page.items() if "spec_decode" in name}
    assert counted == documented("Engines of vLLM that draft")


async def test_a_sampled_answer_is_spoken_as_the_reference_speaks_its_tokens(
    server: TinyServer, reference: Reference
) -> None:
    question = ASKED[2]
    sampled = {"temperature": 1, "min_tokens": MAX_TOKENS, "return_token_ids": True}
    reply = await server.ask(question.messages, **SPOKEN, **sampled)
    token_ids = reply.raw["choices"][0]["token_ids"]
    assert len(token_ids) == MAX_TOKENS
    said = Forced(token_ids)
    answer = reference.answer(question, MAX_TOKENS, MAX_FRAMES, thinker_logits_processor=[said])
    # vLLM keeps the bytes of a character that has no end, which transformers writes as U+FFFD.
    assert reply.text == answer.text.rstrip("\N{REPLACEMENT CHARACTER}")
    assert np.array_equal(reply.codes, answer.codes)
    assert reply.text != reference.answer(question, MAX_TOKENS, MAX_FRAMES).text
