"""Laziness, cancels and refusals of the real server."""

import asyncio
import base64
import time
from contextlib import aclosing
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import QUESTIONS
from support.faults.hanging_up import ask_and_hang_up
from support.media.audio import samples_of
from support.servers.server import TinyServer, assert_same_sound
from support.servers.snapshots import reported_page
from support.waiting import until

pytestmark = pytest.mark.engine

HELLO = QUESTIONS[0].messages
ENDLESS = {
    "max_completion_tokens": 900,
    "ignore_eos": True,
    "stage_params": {"talker": {"temperature": 0, "max_tokens": 900, "ignore_eos": True}},
}
NUM_CHUNKS = 39  # of such an answer's 900 frames: of 2, 4 and 8, then of 25


def counters(server: TinyServer, key: str) -> dict[str, int]:
    return {name: stage[key] for name, stage in server.health().items()}


async def settle(server: TinyServer) -> None:
    """Return once no stage has a request."""
    await until(lambda: not any(counters(server, "running").values()))


async def test_a_text_only_request_makes_no_speech(server: TinyServer) -> None:
    await asyncio.to_thread(reported_page, server)
    before = server.health()
    async with httpx.AsyncClient(timeout=600) as client:
        body = {"model": server.model, "messages": HELLO, "max_completion_tokens": 8}
        response = await client.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"]
    await asyncio.to_thread(reported_page, server)
    after = server.health()
    assert after["thinker"]["requests_total"] == before["thinker"]["requests_total"] + 1
    for stage in ("talker", "code2wav"):
        for key in ("requests_total", "chunks_in", "chunks_out"):
            assert after[stage][key] == before[stage][key]


async def hang_up_streaming(server: TinyServer) -> None:
    async with aclosing(server.events(HELLO, **ENDLESS)) as events:
        async for event in events:
            if any((choice["delta"].get("audio") or {}).get("data") for choice in event["choices"]):
                return


async def hang_up_waiting(server: TinyServer) -> None:
    url, body = f"{server.url}/v1/chat/completions", server.body(HELLO, **ENDLESS)
    await ask_and_hang_up(url, lambda: counters(server, "running")["talker"], json=body)


@pytest.mark.parametrize("hang_up", [hang_up_streaming, hang_up_waiting])
async def test_a_client_that_hangs_up_frees_every_slot_before_the_end_of_its_answer(
    hang_up: Any, server: TinyServer
) -> None:
    fresh = await server.ask(HELLO)
    await settle(server)
    before = counters(server, "chunks_in")["code2wav"]
    for _ in range(3):
        await asyncio.gather(*(hang_up(server) for _ in range(4)))
        await settle(server)
    made = counters(server, "chunks_in")["code2wav"] - before
    assert made < NUM_CHUNKS * 3 * 4 / 2, "the answers went on to their end"
    again = await asyncio.gather(*(server.ask(HELLO) for _ in range(4)))
    for reply in again:
        assert reply.text == fresh.text
        assert np.array_equal(reply.codes, fresh.codes)
        assert_same_sound(reply.pcm, fresh.pcm)


async def test_an_answer_without_text_has_no_audio(server: TinyServer) -> None:
    reply = await server.ask(HELLO, max_completion_tokens=1)
    assert len(reply.codes) == 0
    assert len(reply.pcm) == 0
    await settle(server)


async def test_one_seed_gives_one_answer(server: TinyServer) -> None:
    options = {"seed": 7, "temperature": 1.0, "stage_params": {"talker": {"max_tokens": 30}}}
    first, *others = await asyncio.gather(*(server.ask(HELLO, **options) for _ in range(3)))
    for other in others:
        assert other.text == first.text
        assert np.array_equal(other.codes, first.codes)
    different = await server.ask(HELLO, **{**options, "seed": 8})
    assert not np.array_equal(different.codes, first.codes)


async def test_what_the_engine_refuses_is_a_400(server: TinyServer) -> None:
    async with httpx.AsyncClient(timeout=600) as client:
        body = server.body([{"role": "user", "content": "long " * 3000}])
        response = await client.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "context_length_exceeded"


async def test_an_ignored_end_of_speech_is_not_spoken(server: TinyServer) -> None:
    """A sampled end would be a code that the vocoder does not know."""
    for seed in range(3):
        talker = {"max_tokens": 90, "ignore_eos": True}
        reply = await server.ask(
            HELLO, seed=seed, max_completion_tokens=4, stage_params={"talker": talker}
        )
        assert len(reply.codes) == 90


async def test_a_timeline_follows_the_request_through_every_stage(server: TinyServer) -> None:
    started = time.monotonic()
    reply = await server.ask(HELLO, return_timeline=True)
    took_ms = 1e3 * (time.monotonic() - started)
    marks = [(f"{mark['stage']}.{mark['event']}", mark["ms"]) for mark in reply.raw["timeline"]]
    names = [name for name, _ in marks]
    words = [
        "gateway.received",
        "gateway.admitted",
        "gateway.sent",
        "thinker.received",
        "thinker.rendered",
        "thinker.first_token",
    ]
    codes = ["talker.received", "talker.first_prefill", "talker.first_code"]
    # A codec frame goes to code2wav while the engine's step ends, which is when it is stamped.
    audio = ["code2wav.first_frames", "code2wav.first_samples", "gateway.first_audio"]
    for chain in (words, codes, [*words, "talker.first_code"], [*words, *audio]):
        assert [name for name in names if name in chain] == chain
    assert names.index("talker.first_prefill") < names.index("code2wav.first_frames")
    assert sorted(names) == sorted(
        [*words, *codes, *audio, "code2wav.received", "gateway.first_text"]
    )
    assert 0 < marks[-1][1] < took_ms
    await settle(server)


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
async def test_speech_in_every_format_and_a_turn_that_names_it(
    form: str, server: TinyServer
) -> None:
    audio = {"voice": "ethan", "format": form}
    exact = await server.ask(HELLO)
    body = server.body(HELLO, audio=audio)
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/chat/completions"
        said = (await client.post(url, json=body)).json()["choices"][0]["message"]["audio"]
        sound = samples_of(base64.b64decode(said["data"]))
        assert 0 <= len(sound) - len(exact.pcm) <= 2 * 1152
        earlier = {"role": "assistant", "audio": {"id": said["id"]}}
        more = [*HELLO, earlier, {"role": "user", "content": "And?"}]
        again = await client.post(url, json=server.body(more, audio=audio))
        assert again.status_code == 200
    streamed = b""
    async for event in server.events(HELLO, audio=audio):
        for choice in event["choices"]:
            streamed += base64.b64decode((choice["delta"].get("audio") or {}).get("data", ""))
    assert 0 <= len(samples_of(streamed)) - len(exact.pcm) <= 2 * 1152
