"""BAGEL while keys and values are on the way: deaths of either stage, and waits for memory."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from references.bagel_inputs import MAX_WORDS, TALKS
from support.faults.chaos import ready_again
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.oracles.bagel import RecordedDrawings
from support.servers.image_requests import ask, expected, is_same, pictures_of
from support.servers.server import TinyServer, check_that_nothing_is_held, running_server
from support.servers.snapshots import counted_by_now
from support.waiting import until

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.bagel.pipeline import BagelPipeline

pytestmark = pytest.mark.engine

LLM, DIT = ("llm", "engine"), ("dit", "worker")
TOKEN_BYTES = 3 * 2 * 32 * 4  # of the tiny model: layers, keys and values, a head, float32
LONG_PROMPT = "a cat " * 230
NUM_TOKENS = len(LONG_PROMPT) + 2  # of bytes, and its marks
ROOM_TOKENS = 2000  # in the memory of the pipeline's stage: there is room for one such prompt
PREFIX = "an owl, " * 40  # more than a block of 128; no other prompt here begins so
CACHED = "vllm:prefix_cache_hits_total"  # tokens
CHANNEL = {"name": "shm", "arena_mb": 1, "credit": 1}  # the keys of the prompt are several chunks


@pytest.fixture(scope="module")
def server(tiny_bagel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """The pipeline's stage has room for few keys; nothing may be left of the tests' requests."""
    folder = tmp_path_factory.mktemp("bagel-keys")
    graph = yaml.safe_load((GRAPHS / "bagel_tiny.yaml").read_text())
    graph["stages"]["dit"]["options"] = {"kv_gib": ROOM_TOKENS * TOKEN_BYTES / (1 << 30)}
    graph["edges"][0]["connector"] = CHANNEL
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    with running_server(str(path), folder / "log", "--model", str(tiny_bagel)) as running:
        yield running


@pytest.fixture(scope="module")
def bare(tiny_bagel: Path) -> BagelPipeline:
    return BagelPipeline.from_pretrained(tiny_bagel)


def held(server: TinyServer, stage: str, what: str) -> int:
    return int(server.health()[stage]["held"].get(what, 0))


def held_keys(server: TinyServer) -> tuple[int, int]:
    """Tokens whose keys have not left the engine, and those that the pipeline's has room for."""
    waiting, taken = (held(server, stage, "kv_bytes") for stage in ("llm", "dit"))
    return waiting // TOKEN_BYTES, taken // TOKEN_BYTES


async def write(server: TinyServer, **more: Any) -> httpx.Response:
    """Ask for the recorded words."""
    messages = [{"role": "user", "content": TALKS["words"].texts[0]}]
    body = {"messages": messages, "temperature": 0, "max_tokens": MAX_WORDS, **more}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/chat/completions"
        return await client.post(url, json={**body, "skip_special_tokens": False})


@pytest.mark.parametrize("killed", [LLM, DIT], ids=lambda one: one[0])
@pytest.mark.parametrize("are_taken", [False, True], ids=["announced", "in part"])
async def test_a_stage_may_be_killed_while_keys_are_on_the_way(
    are_taken: bool,
    killed: tuple[str, str],
    server: TinyServer,
    bare: BagelPipeline,
    tiny_bagel: Path,
) -> None:
    """Nothing is taken of them yet, or a part, of which the rest cannot leave any more."""
    await ready_again(server)
    before = server.generations()
    with contextlib.ExitStack() as stopping:
        taking = stopping.enter_context(contextlib.ExitStack())
        taking.enter_context(stopped(pid_of(server, *DIT)))
        drawing = asyncio.ensure_future(ask(server, LONG_PROMPT, 1))
        await until(
            lambda: drawing.done() or held_keys(server)[0] > 0 < held(server, "llm", "credits")
        )
        if are_taken:
            stopping.enter_context(stopped(pid_of(server, *LLM)))
            taking.close()
            await until(lambda: drawing.done() or held_keys(server)[1] > 0)
            assert held(server, "dit", "late_inputs") == 1
        assert not drawing.done()
        os.kill(pid_of(server, *killed), signal.SIGKILL)
        answer = await drawing
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["code"] == "stage_unavailable"
    assert killed[0] in error["message"]
    assert "no sign of life" not in error["message"]
    if killed == DIT:  # the engine whose keys nobody took goes on
        said = await write(server)
        assert said.status_code == 200, said.text
        (choice,) = said.json()["choices"]
        assert choice["message"]["content"] == RecordedDrawings(tiny_bagel).words("words")
    await ready_again(server)
    check_that_nothing_is_held(server)
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare, "a cat", 1)[0])
    after = server.generations()
    assert after == {name: before[name] + (name == killed[0]) for name in before}


async def test_an_image_waits_for_room_until_others_have_given_it_back(
    server: TinyServer, bare: BagelPipeline
) -> None:
    await ready_again(server)
    holding = asyncio.ensure_future(ask(server, LONG_PROMPT, 1, num_inference_steps=1000))
    await until(lambda: holding.done() or held_keys(server)[1] > 0)
    taken = held_keys(server)[1]
    assert ROOM_TOKENS - taken < NUM_TOKENS
    waiting = asyncio.ensure_future(ask(server, LONG_PROMPT, 2))
    await until(lambda: waiting.done() or held(server, "dit", "late_inputs") == 1)
    await until(lambda: waiting.done() or held(server, "llm", "credits") == 1)
    assert held_keys(server)[1] == taken
    assert not holding.done()
    assert not waiting.done()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    (picture,) = pictures_of(await waiting)
    assert is_same(picture, expected(bare, LONG_PROMPT, 2)[0])


async def test_what_the_prefix_cache_has_draws_the_same_image(
    server: TinyServer, bare: BagelPipeline
) -> None:
    """Also as the beginning of a longer prompt, whose rest is computed."""
    await ready_again(server)
    before = await asyncio.to_thread(counted_by_now, server, "llm", CACHED)
    for prompt, is_cached in ((PREFIX, False), (PREFIX, True), (f"{PREFIX}and a fox", True)):
        (picture,) = pictures_of(await ask(server, prompt, 1))
        assert is_same(picture, expected(bare, prompt, 1)[0])
        now = await asyncio.to_thread(counted_by_now, server, "llm", CACHED)
        assert (now > before) == is_cached
        before = now
    assert not is_same(picture, expected(bare, "an owl", 1)[0])


async def test_the_timeline_of_an_image_has_when_its_prompt_was_read(server: TinyServer) -> None:
    await ready_again(server)
    name, at = "read", dict[str, float]()
    async with httpx.AsyncClient(timeout=120) as client:
        body = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 1000}
        url, headers = f"{server.url}/v1/images/generations", {"x-request-id": name}
        drawing = asyncio.ensure_future(client.post(url, json=body, headers=headers))
        while "read" not in at and not drawing.done():
            found = await client.get(f"{server.url}/admin/traces/{name}")
            way = found.json()["timeline"] if found.status_code == 200 else []
            at = {one["event"]: one["ms"] for one in way if one["stage"] == "llm"}
        drawing.cancel()
        await asyncio.wait({drawing})
    assert at["received"] <= at["read"]
