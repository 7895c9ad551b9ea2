"""Over HTTP: greedy text, every codec code and the waveform equal transformers' generate."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import (
    QUESTIONS,
    USER_TURNS,
    Question,
    conversation,
    heard_question,
    image_part,
    picture,
    question,
    sampled_question,
    text,
    video_bytes,
    video_question,
)
from support.faults.chaos import victims
from support.faults.shared_forwards import pid_of
from support.faults.stopping import in_slices
from support.oracles.reference import Answer, Reference
from support.servers.server import Reply, TinyServer, assert_same_sound

MAX_TOKENS, MAX_FRAMES = 16, 40
NUM_TRIES = 30  # the order of processes on a busy machine is not ours: once is enough

pytestmark = pytest.mark.engine


def names(question: Question) -> str:
    return question.name


def assert_equal(reply: Reply, answer: Answer) -> None:
    assert reply.text == answer.text
    assert np.array_equal(reply.codes, answer.codes)
    assert len(reply.pcm) == len(answer.pcm)
    assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4


@pytest.mark.parametrize("asked", QUESTIONS, ids=names)
async def test_an_answer_equals_the_reference(
    asked: Question, server: TinyServer, reference: Reference
) -> None:
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
    assert_equal(await server.ask(asked.messages), answer)
    assert_equal(await server.stream(asked.messages), answer)


async def test_a_video_equals_the_reference(server: TinyServer, reference: Reference) -> None:
    asked = video_question(video_bytes(num_frames=4, size=64))
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
    assert_equal(await server.ask(asked.messages), answer)
    assert_equal(await server.stream(asked.messages), answer)


@pytest.mark.parametrize(
    ("name", "num_frames", "size", "num_samples"),
    [
        ("short sound", 6, 64, 8000),
        ("long sound", 6, 64, 48000),
        ("in several steps", 12, 64, 48000),  # more tokens than one step of the thinker has
    ],
)
async def test_a_video_that_is_heard_equals_the_reference(
    name: str,
    num_frames: int,
    size: int,
    num_samples: int,
    server: TinyServer,
    reference: Reference,
) -> None:
    asked = heard_question(name, num_frames, size, num_samples)
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
    options = {"mm_processor_kwargs": {"use_audio_in_video": True}}
    reply = await server.ask(asked.messages, **options)
    assert_equal(reply, answer)
    assert reply.raw["usage"]["prompt_tokens"] == num_prompt_tokens(asked, reference)
    assert_equal(await server.stream(asked.messages, **options), answer)  # cached by then
    unheard = await server.ask(asked.messages)
    num_sounds = reply.raw["usage"]["prompt_tokens"] - unheard.raw["usage"]["prompt_tokens"]
    assert num_sounds > num_samples / 16000 * 12


def num_prompt_tokens(asked: Question, reference: Reference) -> int:
    return int(reference.inputs(asked)["input_ids"].shape[1])


async def test_a_video_that_is_too_much_with_its_sound_is_refused_not_waited_for(
    server: TinyServer,
) -> None:
    asked = heard_question("too much", 20, 256, 80000)
    options = {"mm_processor_kwargs": {"use_audio_in_video": True}}
    async with httpx.AsyncClient(timeout=600) as client:
        body = server.body(asked.messages, **options)
        refused = await client.post(f"{server.url}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "messages"
    assert "tokens with its sound" in error["message"]


FILM = video_bytes(num_frames=24, size=64)
# Rates for which a pair of frames is a whole number of positions.
SAMPLED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"mm_processor_kwargs": {"fps": 1}}, {}, {"fps": 1.0}),
    ({"mm_processor_kwargs": {"fps": 1, "min_frames": 8}}, {}, {"fps": 1.0, "min_frames": 8}),
    (
        {"media_io_kwargs": {"video": {"fps": 2, "max_frames": 7}}},
        {},
        {"fps": 2.0, "max_frames": 7},
    ),
    ({}, {"fps": 2, "min_frames": 4, "max_frames": 8}, {"fps": 2.0, "max_frames": 8}),
    ({}, {"max_frames": 5}, {"max_frames": 5}),
]


@pytest.mark.parametrize(("fields", "part", "sampling"), SAMPLED)
async def test_the_frames_that_a_request_asks_for_are_those_of_transformers(
    fields: dict[str, Any],
    part: dict[str, Any],
    sampling: dict[str, Any],
    server: TinyServer,
    reference: Reference,
) -> None:
    asked = sampled_question("sampled", FILM, part, **sampling)
    reply = await server.ask(asked.messages, **fields)
    assert reply.raw["usage"]["prompt_tokens"] == num_prompt_tokens(asked, reference)
    assert_equal(reply, reference.answer(asked, MAX_TOKENS, MAX_FRAMES))


async def test_the_pixels_that_a_part_asks_for_are_those_of_transformers(
    server: TinyServer, reference: Reference
) -> None:
    size = {"shortest_edge": 1024, "longest_edge": 4096}
    film = sampled_question("film", FILM, {"max_pixels": 4096})
    image = picture(256, 256, seed=7)
    part = {**image_part(image), "max_pixels": 4096}
    still = question("still", [part, text("What is it?")], images=[image])
    for asked in (film, still):
        asked = replace(asked, options={"size": size})
        reply = await server.ask(asked.messages)
        assert reply.raw["usage"]["prompt_tokens"] == num_prompt_tokens(asked, reference)
        assert_equal(reply, reference.answer(asked, MAX_TOKENS, MAX_FRAMES))


async def test_an_image_that_a_text_request_showed_first_is_spoken_about(
    server: TinyServer, reference: Reference
) -> None:
    image = picture(64, 96, seed=5)
    asked = question("seen", [image_part(image), text("And this?")], images=[image])
    async with httpx.AsyncClient(timeout=600) as client:
        body = {"model": server.model, "messages": asked.messages, "max_completion_tokens": 4}
        silent = await client.post(f"{server.url}/v1/chat/completions", json=body)
    assert silent.status_code == 200
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
    assert_equal(await server.ask(asked.messages), answer)


async def test_both_read_a_long_prompt_at_once_and_the_answer_equals_the_reference(
    server: TinyServer, reference: Reference
) -> None:
    images = [picture(256, 256, seed=number) for number in range(4)]
    words = text("Tell me more about the fox and the hound. " * 3)
    parts = [part for image in images for part in (words, image_part(image))]
    asked = question("long with images", [*parts, text("What is it?")], images=images)
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
    processes = victims(server)
    others = [server.process.pid, *(one.pid for one in processes if one.stage != "thinker")]
    for number in range(NUM_TRIES):
        salt = f"read anew {number}"
        with in_slices(pid_of(server, "thinker", "engine"), others):
            reply = await server.ask(asked.messages, return_timeline=True, cache_salt=salt)
        assert_equal(reply, answer)
        at_ms = {f"{mark['stage']}.{mark['event']}": mark["ms"] for mark in reply.raw["timeline"]}
        if at_ms["talker.first_prefill"] < at_ms["thinker.first_token"]:
            return
    pytest.fail("the talker read only what the thinker had read to its end")


async def test_a_turn_that_reads_the_prefix_cache_equals_the_reference(
    server: TinyServer, reference: Reference
) -> None:
    """The rows of images and sounds that are not computed again come from the row cache."""
    answers: list[str] = []
    num_cached = []
    for _ in USER_TURNS:
        asked = conversation(answers)
        answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES)
        reply = await server.ask(asked.messages)
        assert_equal(reply, answer)
        num_cached.append(cached_tokens(reply))
        answers.append(answer.text)
    assert num_cached == sorted(num_cached)
    assert num_cached[0] == 0 < num_cached[1] < num_cached[-1]


def cached_tokens(reply: Reply) -> int:
    """Of the prompt, as the usage says."""
    details = reply.raw["usage"].get("prompt_tokens_details") or {}
    return details.get("cached_tokens") or 0


async def test_a_speaker_by_name_equals_the_reference(
    server: TinyServer, reference: Reference
) -> None:
    asked = QUESTIONS[0]
    answer = reference.answer(asked, MAX_TOKENS, MAX_FRAMES, speaker="chelsie")
    audio = {"voice": "chelsie", "format": "pcm16"}
    assert_equal(await server.ask(asked.messages, audio=audio), answer)


async def test_twelve_requests_at_once_equal_one_at_a_time(server: TinyServer) -> None:
    def options(number: int) -> dict[str, object]:
        talker = {"temperature": 0, "max_tokens": 10 + 5 * number}
        return {"max_completion_tokens": 6 + 2 * number, "stage_params": {"talker": talker}}

    asked = [(QUESTIONS[n % len(QUESTIONS)].messages, options(n)) for n in range(12)]
    alone = [await server.ask(messages, **more) for messages, more in asked]
    together = await asyncio.gather(*(server.stream(messages, **more) for messages, more in asked))
    for one, other in zip(alone, together, strict=True):
        assert one.text == other.text
        assert np.array_equal(one.codes, other.codes)
        assert_same_sound(one.pcm, other.pcm)
