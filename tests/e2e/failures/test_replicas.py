"""Two talkers in one graph: answers as of one, the death of one, one more and one less at work."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from support.api.prompts import QUESTIONS
from support.faults.chaos import Stream, chaos_graph, traces, victims
from support.oracles.reference import Reference
from support.servers.server import ADMIN_KEY, TinyServer, assert_same_sound, running_server
from support.servers.snapshots import health_by_now, reported_page
from support.servers.warm_up import warm_up
from support.waiting import until

pytestmark = pytest.mark.engine

TALKERS = ("talker@0", "talker@1")
MAX_TOKENS, MAX_FRAMES = 16, 40
ASKED = QUESTIONS[:4]
START_S = 180.0  # of a talker, on a machine with other work


@pytest.fixture(scope="module")
def replicated(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("replicas")
    path = chaos_graph(folder, hang_s=600)
    graph = yaml.safe_load(path.read_text())
    graph["stages"]["talker"]["replicas"] = 2
    path.write_text(yaml.safe_dump(graph))
    options = ("--model", str(tiny_checkpoint), "--admin-key", ADMIN_KEY)
    with running_server(str(path), folder / "log", *options) as running:
        asyncio.run(warm_up(running))
        yield running
    assert not traces(running.process.pid)


async def answers_as_one_replica_does(server: TinyServer, reference: Reference) -> None:
    """Four at once: text, codes and samples."""
    replies = await asyncio.gather(*(server.ask(asked.messages) for asked in ASKED))
    for asked, reply in zip(ASKED, replies, strict=True):
        answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
        assert reply.text == answer.text
        assert np.array_equal(reply.codes, answer.codes)
        assert len(reply.pcm) == len(answer.pcm)
        assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4


@asynccontextmanager
async def answered_again_and_again(server: TinyServer, reference: Reference) -> AsyncIterator[None]:
    """Have requests run all the time, from the first answers until the context ends."""
    has_begun, is_over = asyncio.Event(), asyncio.Event()

    async def answers() -> None:
        while not is_over.is_set():
            await answers_as_one_replica_does(server, reference)
            has_begun.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(answers())
        await has_begun.wait()
        yield
        is_over.set()


def counts(server: TinyServer, key: str) -> dict[str, Any]:
    """One of the counts of every talker."""
    return {name: one[key] for name, one in server.health().items() if name.startswith("talker")}


async def num_requests(server: TinyServer) -> dict[str, Any]:
    """Count the requests that each talker has had by now."""
    await asyncio.to_thread(reported_page, server)
    return counts(server, "requests_total")


async def until_ready(server: TinyServer, name: str, generation: int) -> None:
    """Until a replica serves in this life."""
    started = time.monotonic()
    while True:
        health = server.health()[name]
        if (health["state"], health["generation"]) == ("ready", generation):
            return
        assert time.monotonic() - started < START_S, health
        await asyncio.sleep(0.1)


async def scaled(server: TinyServer, num_replicas: int) -> list[str]:
    async with httpx.AsyncClient(timeout=START_S) as client:
        answer = await client.post(
            f"{server.url}/admin/scale",
            json={"stage": "talker", "replicas": num_replicas},
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        )
    assert answer.status_code == 200, answer.text
    replicas: list[str] = answer.json()["stages"]["talker"]["replicas"]
    return replicas


async def test_two_talkers_share_the_requests_and_answer_as_one_does(
    replicated: TinyServer, reference: Reference
) -> None:
    before = await num_requests(replicated)
    await answers_as_one_replica_does(replicated, reference)
    assert await num_requests(replicated) == {name: before[name] + 2 for name in TALKERS}


async def test_the_same_seed_gives_the_same_speech_on_each_talker(replicated: TinyServer) -> None:
    before = await num_requests(replicated)
    sampled = {"seed": 7, "stage_params": {"talker": {"temperature": 0.9, "max_tokens": 20}}}
    one, other = [await replicated.ask(ASKED[0].messages, **sampled) for _ in TALKERS]
    assert await num_requests(replicated) == {n: before[n] + 1 for n in TALKERS}
    assert np.array_equal(one.codes, other.codes)
    assert_same_sound(one.pcm, other.pcm)


async def four_streams(
    server: TinyServer,
) -> tuple[list[Stream], list[asyncio.Task[None]]] | None:
    """Four with audio, two at each talker, all begun and none whole; None if one is."""
    streams = [Stream(has_audio=True) for _ in range(4)]
    running = [asyncio.create_task(stream.run(server)) for stream in streams]
    await asyncio.gather(*(stream.has_begun.wait() for stream in streams))

    def are_shared() -> bool:
        return counts(server, "running") == {"talker@0": 2, "talker@1": 2}

    await until(lambda: are_shared() or any(stream.has_finished for stream in streams))
    if not any(stream.has_finished for stream in streams):
        return streams, running
    await asyncio.gather(*running)
    return None


async def test_a_talker_that_is_killed_takes_its_own_requests_only_and_comes_back(
    replicated: TinyServer, reference: Reference
) -> None:
    before = replicated.health()
    while (begun := await four_streams(replicated)) is None:
        pass  # one was whole before the last had begun
    streams, running = begun
    victim = next(v for v in victims(replicated) if (v.stage, v.role) == ("talker@1", "worker"))
    os.kill(victim.pid, signal.SIGKILL)
    await asyncio.gather(*running)
    failed = [stream for stream in streams if stream.error is not None]
    assert len(failed) == 2
    assert all("talker@1" in str((stream.error or {})["message"]) for stream in failed)
    assert all(stream.is_whole for stream in streams if stream not in failed)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{replicated.url}/ready")).status_code == 200
    await answers_as_one_replica_does(replicated, reference)
    await until_ready(replicated, "talker@1", before["talker@1"]["generation"] + 1)
    await answers_as_one_replica_does(replicated, reference)
    after = await asyncio.to_thread(health_by_now, replicated)
    assert after["talker@1"]["requests_total"] > 0
    assert all(after[n]["restarts"] == before[n]["restarts"] for n in after if n != "talker@1")


async def test_a_talker_goes_and_comes_while_requests_run(
    replicated: TinyServer, reference: Reference
) -> None:
    async with answered_again_and_again(replicated, reference):
        assert await scaled(replicated, 1) == ["talker@0"]
    assert not [one for one in victims(replicated) if one.stage == "talker@1"]
    assert list(counts(replicated, "running")) == ["talker@0"]
    async with answered_again_and_again(replicated, reference):
        assert await scaled(replicated, 2) == list(TALKERS)
    await answers_as_one_replica_does(replicated, reference)
    assert (await num_requests(replicated))["talker@1"] > 0
