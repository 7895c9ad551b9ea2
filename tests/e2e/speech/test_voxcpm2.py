"""VoxCPM2 over HTTP: it speaks as the voxcpm package does, and nothing stays of who leaves."""

import asyncio
import base64
import itertools
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from references.voxcpm2_talks import (
    MAX_PATCHES,
    SAMPLES_A_PATCH,
    STRIDE,
    TALKS,
    Talk,
    checkpoint_hash,
    key,
    sound_of,
)
from safetensors import safe_open
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.servers.server import TinyServer, check_that_nothing_is_held, is_ready, running_server
from support.servers.text_stream import streamed
from support.waiting import until, wait_until

from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.stages.voxcpm2.checkpoint.tiny import write

pytestmark = pytest.mark.engine

SPOKEN = Path(__file__).parents[2] / "references" / "voxcpm2.safetensors"
NUM_CANCELS = 12  # of each sort
WITH_WORDS = "a voice with words"  # one of the talks
LONG = {"talker": {"max_tokens": 400, "min_tokens": 400}}
LONGER = {"talker": {"max_tokens": 900, "min_tokens": 900}}  # than what sockets keep unread: 14 MB
Samples = npt.NDArray[np.int16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voxcpm2")
    write(folder / "model", 0)
    (folder / "voices").mkdir()
    talk = named(WITH_WORDS)
    sound = Reference.of(sound_of(talk), talk.sound_text)
    asyncio.run(StoredVoices(folder / "voices").add("kept", "yes", sound))
    with safe_open(SPOKEN, "np") as recorded:
        assert checkpoint_hash(folder / "model") == recorded.metadata()["checkpoint"]
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[TinyServer]:
    """Serve it without a graph file, with a folder in which a server before has stored a voice."""
    voices = ("--voices", str(folder / "voices"))
    with running_server(str(folder / "model"), folder / "log", *voices) as running:
        yield running


def wav(samples: npt.NDArray[np.float32]) -> bytes:
    """Mono float32 samples at 24 kHz, which nothing rounds."""
    rate, width, floats = 24_000, 4, 3
    form = struct.pack("<HHIIHH", floats, 1, rate, rate * width, width, 8 * width)
    chunks = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", samples.nbytes) + samples.tobytes()
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def body(server: TinyServer, talk: Talk, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": server.model,
        "input": talk.text,
        "instructions": talk.instructions or None,
        "response_format": "wav",  # PCM is at 24 kHz
        "ref_text": talk.sound_text,
        "stage_params": {"talker": {"seed": talk.seed, "max_tokens": MAX_PATCHES}},
        **more,
    }
    if talk.sound_length and "voice" not in more:
        data = base64.b64encode(wav(sound_of(talk))).decode()
        asked["ref_audio"] = f"data:audio/wav;base64,{data}"
    return {name: value for name, value in asked.items() if value is not None}


async def post(server: TinyServer, asked: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(f"{server.url}/v1/audio/speech", json=asked)


async def pcm(server: TinyServer, talk: Talk, **more: Any) -> Samples:
    response = await post(server, body(server, talk, **more))
    assert response.status_code == 200, response.text
    return samples_of(response.content)


def samples_of(file: bytes) -> Samples:
    """Those of a WAV file that says its rate."""
    assert struct.unpack_from("<I", file, 24) == (48_000,)
    return np.frombuffer(file[file.index(b"data") + 8 :], "<i2")


def check(samples: Samples, talk: Talk) -> None:
    """They are the package's, to a ten-thousandth."""
    with safe_open(SPOKEN, "np") as recorded:
        expected = recorded.get_tensor(key(talk, "samples"))
        num_patches = len(recorded.get_tensor(key(talk, "latents")))
    assert len(samples) == num_patches * SAMPLES_A_PATCH, talk
    assert np.abs(samples[::STRIDE] / 32767 - expected).max() < 1e-4, talk


def named(name: str) -> Talk:
    return next(talk for talk in TALKS if talk.name == name)


async def test_samples_equal_the_package_alone_and_all_at_once(server: TinyServer) -> None:
    """With instructions, with a sound and with its words; eight on four seats."""
    for talk in TALKS[::3]:
        check(await pcm(server, talk), talk)
    together = await asyncio.gather(*(pcm(server, talk) for talk in TALKS))
    for talk, samples in zip(TALKS, together, strict=True):
        check(samples, talk)


async def test_a_streamed_answer_begins_with_a_patch_and_equals_the_whole(
    server: TinyServer,
) -> None:
    talk, parts = named("long"), list[bytes]()
    async with httpx.AsyncClient(timeout=600) as client:
        asked = body(server, talk)
        async with client.stream("POST", f"{server.url}/v1/audio/speech", json=asked) as response:
            assert response.status_code == 200
            async for part in response.aiter_raw():
                parts.append(part)
    assert len(parts) > 1
    check(samples_of(b"".join(parts)), talk)


async def test_a_seed_repeats_and_another_does_not(server: TinyServer) -> None:
    talk, limits = named("plain"), {"talker": {"max_tokens": 6}}
    one, again, other = [
        await pcm(server, talk, seed=seed, stage_params=limits) for seed in (7, 7, 8)
    ]
    assert np.abs(one.astype(int) - again).max() <= 1
    assert len(one) != len(other) or np.abs(one.astype(int) - other).max() > 1000


@pytest.mark.parametrize("form", ["wav", "mp3", "flac", "opus", "aac"])
async def test_formats(server: TinyServer, form: str) -> None:
    response = await post(server, body(server, named("chinese"), response_format=form))
    assert response.status_code == 200
    assert len(response.content) > 1000


async def test_a_sentence_is_spoken_before_the_next_one_is_sent(server: TinyServer) -> None:
    config = {"model": server.model, "stage_params": {"talker": {"max_tokens": 5}}, "seed": 1}
    pieces = ["One sentence is here. ", "And another."]
    samples = await streamed(server.url, pieces, config, hears_each=True)
    assert len(samples) > 5 * SAMPLES_A_PATCH / 2  # of both, at 24 kHz


async def test_stored_voices_speak_also_one_of_a_server_before(server: TinyServer) -> None:
    """The words of their sound are known, so it is gone on from."""
    talk = named(WITH_WORDS)
    form = {"name": "new", "consent": "yes", "ref_text": talk.sound_text}
    files = {"audio_sample": ("voice.wav", wav(sound_of(talk)), "audio/wav")}
    async with httpx.AsyncClient(timeout=600) as client:
        stored = await client.post(f"{server.url}/v1/audio/voices", data=form, files=files)
    assert stored.status_code == 200, stored.text
    for voice in ("kept", "new"):
        check(await pcm(server, talk, voice=voice, ref_text=None), talk)


async def test_what_cannot_be_spoken_is_refused_by_name(server: TinyServer) -> None:
    silence = base64.b64encode(wav(np.zeros(24_000, np.float32))).decode()
    refused = {
        "ref_audio": {"ref_audio": f"data:audio/wav;base64,{silence}"},
        "input": {"input": "  "},
        "language": {"language": "english"},
    }
    for param, more in refused.items():
        response = await post(server, body(server, named("plain"), **more))
        assert response.status_code == 400, param
        assert response.json()["error"]["param"] == param
    response = await post(server, body(server, named("plain"), **refused["ref_audio"]))
    assert "silent" in response.json()["error"]["message"]


async def test_clients_that_leave_leave_nothing(server: TinyServer) -> None:
    """Before the first sample, and after it."""
    asked = [
        body(server, talk, stage_params=LONG)
        for talk in itertools.islice(itertools.cycle(TALKS), NUM_CANCELS)
    ]

    async def hear_and_leave(one: dict[str, Any]) -> None:
        async with httpx.AsyncClient(timeout=600) as client:
            url = f"{server.url}/v1/audio/speech"
            async with client.stream("POST", url, json=one) as response:
                await anext(response.aiter_raw())

    with stopped(pid_of(server, "talker", "engine")):
        running = [asyncio.create_task(post(server, one)) for one in asked]
        await until(lambda: server.health()["talker"]["running"] == NUM_CANCELS)
        assert all(one.cancel() for one in running)
        await asyncio.wait(running)
    await asyncio.gather(*map(hear_and_leave, asked))
    check_that_nothing_is_held(server)
    check(await pcm(server, TALKS[0]), TALKS[0])


async def struck(client: httpx.AsyncClient, url: str, asked: dict[str, Any], pid: int) -> None:
    """Read an answer whose stage is killed once its first sound has come."""
    async with client.stream("POST", url, json=asked) as response:
        sounds = response.aiter_raw()
        await anext(sounds)
        os.kill(pid, signal.SIGKILL)
        async for _ in sounds:
            pass


@pytest.mark.repeat  # of tests/e2e/failures/test_restart.py
@pytest.mark.parametrize("stage", ["talker", "vae"])
async def test_a_killed_stage_fails_what_runs_and_starts_again(
    server: TinyServer, stage: str
) -> None:
    generation = server.generations()[stage]
    pid = pid_of(server, stage, "worker")
    async with httpx.AsyncClient(timeout=600) as client:
        url, asked = f"{server.url}/v1/audio/speech", body(server, TALKS[0], stage_params=LONGER)
        with pytest.raises(httpx.RemoteProtocolError):
            await struck(client, url, asked, pid)
    await asyncio.to_thread(wait_until, lambda: is_ready(server.url))
    assert server.generations()[stage] == generation + 1
    check(await pcm(server, TALKS[0]), TALKS[0])
    check_that_nothing_is_held(server)
