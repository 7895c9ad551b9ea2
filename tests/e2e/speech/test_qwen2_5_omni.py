"""Qwen2.5-Omni over HTTP: greedy text, every code and every sample equal transformers' generate.

Its token2wav decodes answers whole, so that nothing is approximated.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from openai import OpenAI
from support.api.openai_answers import strict_client
from support.api.prompts import (
    QUESTIONS,
    USER_TURNS,
    Question,
    conversation,
    heard_question,
    image_part,
    picture,
    question,
    text,
    video_bytes,
    video_question,
)
from support.faults.chaos import victims
from support.faults.shared_forwards import pid_of
from support.faults.stopping import in_slices
from support.oracles.qwen2_5_omni import Answer, Qwen2_5Reference
from support.servers.server import Reply, TinyServer, assert_same_sound, running_server
from support.servers.warm_up import warm_up

from omnistage.server.tasks.speech.requests import seed_of_piece
from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine

MAX_TOKENS, MAX_CODES = 16, 40
NUM_TRIES = 30  # the order of processes on a busy machine is not ours: once is enough
ASKED = [*QUESTIONS, video_question(video_bytes(num_frames=4, size=64))]
VOICE = {"voice": "Chelsie", "format": "pcm16"}


@pytest.fixture(scope="module")
def server(
    tiny_qwen2_5_omni: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    """The tiny graph, with whole answers in token2wav."""
    folder = tmp_path_factory.mktemp("qwen2.5-omni")
    graph = yaml.safe_load((GRAPHS / "qwen2_5_omni_tiny.yaml").read_text())
    graph["stages"]["token2wav"]["options"] = {"chunk": "whole"}
    file = folder / "graph.yaml"
    file.write_text(yaml.safe_dump(graph))
    with running_server(str(file), folder / "log", "--model", str(tiny_qwen2_5_omni)) as running:
        asyncio.run(warm_up(running))
        yield running


def names(asked: Question) -> str:
    return asked.name


def options(seed: int = 0, **more: Any) -> dict[str, Any]:
    return {"audio": VOICE, "seed": seed, **more}


def assert_equal(reply: Reply, answer: Answer) -> None:
    assert reply.text == answer.text
    assert np.array_equal(reply.codes, answer.codes[:, None])
    assert_sounds(reply.pcm, answer)


def assert_sounds(pcm: npt.NDArray[np.int16], answer: Answer) -> None:
    assert len(pcm) == len(answer.pcm) == 480 * len(answer.codes)
    assert np.abs(pcm / 32767 - answer.pcm).max() < 1e-4


@pytest.mark.parametrize("asked", ASKED, ids=names)
async def test_an_answer_equals_the_reference(
    asked: Question, server: TinyServer, qwen2_5_reference: Qwen2_5Reference
) -> None:
    """Each with a seed of its own for the noise that its sound is made of."""
    seed = ASKED.index(asked)
    answer = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES, seed=seed)
    assert_equal(await server.ask(asked.messages, **options(seed)), answer)
    assert_equal(await server.stream(asked.messages, **options(seed)), answer)


@pytest.mark.parametrize(
    ("name", "num_frames", "size", "num_samples", "fps"),
    [
        ("short sound", 8, 64, 8000, None),
        ("longer sound", 8, 64, 60000, None),  # the same frames: what is cached must not be taken
        ("short sound again", 8, 64, 8000, None),
        ("in several chunks", 20, 64, 70400, None),
        ("in several steps", 24, 112, 94400, None),  # more tokens than one step has
        ("frames far apart", 20, 64, 70400, 0.5),
    ],
)
async def test_a_video_that_is_heard_equals_the_reference(
    name: str,
    num_frames: int,
    size: int,
    num_samples: int,
    fps: float | None,
    server: TinyServer,
    qwen2_5_reference: Qwen2_5Reference,
) -> None:
    pixels = {"shortest_edge": 1024, "longest_edge": size * size}
    asked = heard_question(name, num_frames, size, num_samples, fps, size=pixels)
    answer = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES)
    processor: dict[str, Any] = {"use_audio_in_video": True}
    processor |= {"min_pixels": 1024, "max_pixels": size * size}
    processor |= {} if fps is None else {"fps": fps}
    more = options(mm_processor_kwargs=processor)
    reply = await server.ask(asked.messages, **more)
    num_tokens = qwen2_5_reference.inputs(asked)["input_ids"].shape[1]
    assert reply.raw["usage"]["prompt_tokens"] == num_tokens
    assert_equal(reply, answer)
    assert_equal(await server.stream(asked.messages, **more), answer)  # cached by then


async def test_a_turn_that_reads_the_prefix_cache_equals_the_reference(
    server: TinyServer, qwen2_5_reference: Qwen2_5Reference
) -> None:
    """Its talker takes a row of every position, those of the answers before among them."""
    answers: list[str] = []
    num_cached = []
    for _ in USER_TURNS:
        asked = conversation(answers)
        answer = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES)
        reply = await server.ask(asked.messages, **options())
        assert_equal(reply, answer)
        details = reply.raw["usage"].get("prompt_tokens_details") or {}
        num_cached.append(details.get("cached_tokens") or 0)
        answers.append(answer.text)
    assert num_cached == sorted(num_cached)
    assert num_cached[0] == 0 < num_cached[1] < num_cached[-1]


async def test_the_other_speaker_equals_the_reference(
    server: TinyServer, qwen2_5_reference: Qwen2_5Reference
) -> None:
    asked = QUESTIONS[1]
    answer = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES, speaker="Ethan")
    other = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES)
    assert not np.array_equal(answer.pcm, other.pcm)
    audio = {"voice": "ethan", "format": "pcm16"}
    assert_equal(await server.ask(asked.messages, **options(audio=audio)), answer)


async def test_a_stop_string_ends_the_speech_where_the_text_ends(
    server: TinyServer, qwen2_5_reference: Qwen2_5Reference
) -> None:
    """As the reference speaks an answer of so many tokens and one more."""
    asked = QUESTIONS[2]
    whole = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES)
    stop = whole.text[4:6]
    assert whole.text.index(stop) == 4
    shorter = qwen2_5_reference.answer(asked, 5, MAX_CODES)
    reply = await server.ask(asked.messages, **options(stop=[stop]))
    assert reply.text == whole.text[:4]
    assert np.array_equal(reply.codes, shorter.codes[:, None])


async def test_both_read_a_long_prompt_at_once_and_no_stage_waits_for_the_end_of_another(
    server: TinyServer, qwen2_5_reference: Qwen2_5Reference
) -> None:
    images = [picture(224, 224, seed=number) for number in range(4)]
    words = text("Tell me more about the fox and the hound. " * 2)
    parts = [part for image in images for part in (words, image_part(image))]
    asked = question("long with images", [*parts, text("What is it?")], images=images)
    answer = qwen2_5_reference.answer(asked, MAX_TOKENS, MAX_CODES)
    reply = await server.ask(asked.messages, **options(return_timeline=True))
    assert_equal(reply, answer)
    processes = victims(server)
    others = [server.process.pid, *(one.pid for one in processes if one.stage != "thinker")]
    at_ms = dict[str, float]()
    for number in range(NUM_TRIES):
        with in_slices(pid_of(server, "thinker", "engine"), others):
            at_ms = await timeline_of_a_long_answer(server, asked, salt=f"read anew {number}")
        if is_at_once(at_ms):
            return
    pytest.fail(f"a stage waited for the end of another: {at_ms}")


async def timeline_of_a_long_answer(
    server: TinyServer, asked: Question, salt: str
) -> dict[str, float]:
    """When each stage reached what, and the gateway the text's end, in ms since the request."""
    talker = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
    more: dict[str, Any] = {"max_completion_tokens": 200, "stage_params": {"talker": talker}}
    more |= {"ignore_eos": True, "cache_salt": salt}
    began = time.monotonic()
    at_ms = dict[str, float]()
    async for event in server.events(asked.messages, **options(return_timeline=True, **more)):
        for choice in event["choices"]:
            if (choice["delta"].get("audio") or {}).get("transcript"):
                at_ms["gateway.last_text"] = 1000 * (time.monotonic() - began)
        marks = event.get("timeline", ())
        at_ms |= {f"{mark['stage']}.{mark['event']}": mark["ms"] for mark in marks}
    return at_ms


def is_at_once(at_ms: dict[str, float]) -> bool:
    """Whether the talker read while the thinker did, and both later stages while it wrote."""
    first_token_ms = at_ms["thinker.first_token"]
    half_of_the_text_ms = (first_token_ms + at_ms["gateway.last_text"]) / 2
    later = (at_ms["talker.first_code"], at_ms["token2wav.first_frames"])
    return at_ms["talker.first_prefill"] < first_token_ms and max(later) < half_of_the_text_ms


async def test_an_answer_without_a_spoken_token_is_silent(server: TinyServer) -> None:
    reply = await server.ask(QUESTIONS[0].messages, **options(max_completion_tokens=1))
    assert reply.text
    assert not len(reply.codes)
    assert not len(reply.pcm)


async def test_twelve_requests_at_once_equal_one_at_a_time(server: TinyServer) -> None:
    def asked(number: int) -> tuple[list[Any], dict[str, Any]]:
        talker = {"temperature": 0, "max_tokens": 10 + 5 * number}
        more = {"max_completion_tokens": 6 + 2 * number, "stage_params": {"talker": talker}}
        return QUESTIONS[number % len(QUESTIONS)].messages, options(number, **more)

    alone = [await server.ask(messages, **more) for messages, more in map(asked, range(12))]
    together = await asyncio.gather(
        *(server.stream(messages, **more) for messages, more in map(asked, range(12)))
    )
    for one, other in zip(alone, together, strict=True):
        assert one.text == other.text
        assert np.array_equal(one.codes, other.codes)
        assert_same_sound(one.pcm, other.pcm)


async def test_a_seed_is_one_sampled_answer(server: TinyServer) -> None:
    more = {"temperature": 1, "stage_params": {"talker": {"max_tokens": 30, "ignore_eos": True}}}
    one, again, other = [
        await server.ask(QUESTIONS[0].messages, **options(seed, **more)) for seed in (7, 7, 8)
    ]
    assert (one.text, one.codes.tolist()) == (again.text, again.codes.tolist())
    assert_same_sound(one.pcm, again.pcm)
    assert one.codes.tolist() != other.codes.tolist()


async def speak(server: TinyServer, said: str, **more: Any) -> httpx.Response:
    talker = {"temperature": 0, "max_tokens": MAX_CODES}
    body = {"input": said, "voice": "Chelsie", "response_format": "pcm", "seed": 0}
    body |= {"stage_params": {"talker": talker}, **more}
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(f"{server.url}/v1/audio/speech", json=body)


@pytest.mark.parametrize(
    ("said", "instructions", "voice"),
    [
        ("Hello there, how are you?", "", "Chelsie"),
        ("Hm", "", "Ethan"),
        (
            "Ein Satz mit Ümläuten, 漢字 und\nzwei Zeilen.",
            "Whisper, as if\nnobody may hear.",
            "Chelsie",
        ),
    ],
)
async def test_a_given_text_is_spoken_as_the_reference_speaks_it(
    said: str,
    instructions: str,
    voice: str,
    server: TinyServer,
    qwen2_5_reference: Qwen2_5Reference,
) -> None:
    answer = qwen2_5_reference.speech(said, instructions, MAX_CODES, voice)
    assert answer.text == said
    response = await speak(server, said, instructions=instructions, voice=voice)
    assert response.status_code == 200, response.text
    assert_sounds(np.frombuffer(response.content, "<i2"), answer)


async def test_a_longer_text_is_spoken_in_pieces_one_after_the_other(server: TinyServer) -> None:
    sentence = "One sentence of many words, all alike. "
    pieces = [(sentence * 7).strip(), f"{sentence}And another one."]
    seeds = [0, seed_of_piece(0, 1)]
    replies = [
        await speak(server, piece, seed=seed) for piece, seed in zip(pieces, seeds, strict=True)
    ]
    alone = [np.frombuffer(reply.content, "<i2") for reply in replies]
    together = np.frombuffer((await speak(server, " ".join(pieces))).content, "<i2")
    assert all(map(len, alone))
    assert_same_sound(together, np.concatenate(alone))


async def test_instructions_that_are_too_long_are_refused(server: TinyServer) -> None:
    response = await speak(server, "Hello", instructions="x" * 1100)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


def test_the_sdk_hears_an_answer_and_knows_the_voices(server: TinyServer) -> None:
    client: OpenAI
    with strict_client(server.url) as client:
        answer = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "Hello"}],
            modalities=["text", "audio"],
            audio={"voice": "chelsie", "format": "wav"},
            max_completion_tokens=8,
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    assert audio.data
    voices = httpx.get(f"{server.url}/v1/audio/voices").json()["voices"]
    assert {"chelsie", "ethan"} <= {voice["name"].lower() for voice in voices}


async def test_a_client_that_hangs_up_frees_the_stages(server: TinyServer) -> None:
    """`nothing_is_left` looks at what they hold afterwards."""
    talker = {"temperature": 0, "max_tokens": 700, "ignore_eos": True}
    body = server.body(
        QUESTIONS[0].messages,
        stream=True,
        max_completion_tokens=400,
        ignore_eos=True,
        audio=VOICE,
        stage_params={"talker": talker},
    )
    async with (
        httpx.AsyncClient(timeout=600) as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status_code == 200
        await anext(response.aiter_lines())
