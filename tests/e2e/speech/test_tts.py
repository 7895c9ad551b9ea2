"""Qwen3-TTS over HTTP: a Base model speaks with voices of sounds as the qwen-tts package does."""

import asyncio
import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from references.qwen3_tts_talks import MAX_FRAMES, STRIDE, Talk, key, sound_of, talks
from safetensors.numpy import load_file
from support.servers.server import TinyServer, running_server
from support.servers.text_stream import streamed

from omnistage.stages.qwen3_tts.family import FAMILY

MODEL = "qwen3-tts-base-0.6b"
SPOKEN = Path(__file__).parents[2] / "references" / "qwen3_tts_talker.safetensors"
SAMPLED = {"talker": {"max_tokens": 12}}
GREEDY = {"talker": {"temperature": 0, "max_tokens": MAX_FRAMES}}
STREAMED = [talk for talk in talks(MODEL) if not talk.is_whole]  # as the model does by itself

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("tts")
    resolve_name(FAMILY.tiny[MODEL].write)(folder / MODEL, 0)
    with running_server(str(folder / MODEL), folder / "log") as running:
        yield running


def wav(talk: Talk) -> str:
    """The reference sound as a data URL; float32 samples, which nothing rounds."""
    samples = sound_of(talk).tobytes()
    rate, width, floats = 24_000, 4, 3
    form = struct.pack("<HHIIHH", floats, 1, rate, rate * width, width, 8 * width)
    chunks = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(samples)) + samples
    file = b"RIFF" + struct.pack("<I", len(chunks)) + chunks
    return f"data:audio/wav;base64,{base64.b64encode(file).decode()}"


def body(server: TinyServer, talk: Talk, **more: Any) -> dict[str, Any]:
    asked = {
        "model": server.model,
        "input": talk.text,
        "response_format": "pcm",
        "ref_audio": wav(talk),
        "ref_text": talk.sound_text,
        "language": talk.language,
        **more,
    }
    return {name: value for name, value in asked.items() if value is not None}


async def post(server: TinyServer, asked: dict[str, Any], path: str = "audio/speech") -> Any:
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(f"{server.url}/v1/{path}", json=asked)


async def pcm(server: TinyServer, talk: Talk, **more: Any) -> npt.NDArray[np.int16]:
    response = await post(server, body(server, talk, **more))
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<i2")


@pytest.mark.parametrize("talk", STREAMED, ids=lambda talk: talk.name)
async def test_samples_equal_the_package(talk: Talk, server: TinyServer) -> None:
    samples = await pcm(server, talk, stage_params=GREEDY)
    expected = load_file(SPOKEN)[key(MODEL, talk, "samples")]
    heard = samples[::STRIDE] / 32767
    assert heard.shape == expected.shape
    assert np.abs(heard - expected).max() < 1e-4


@pytest.mark.parametrize("talk", STREAMED, ids=lambda talk: talk.name)
async def test_samples_of_a_text_in_pieces_equal_the_package(
    talk: Talk, server: TinyServer
) -> None:
    """In any cutting those of the package's mode that streams the text."""
    expected = load_file(SPOKEN)[key(MODEL, talk, "samples")]
    config = {name: value for name, value in body(server, talk).items() if name != "input"}
    config["stage_params"] = GREEDY
    cuttings = [list(talk.text), [talk.text[:5], talk.text[5:]], talk.text.split(" ")]
    cuttings[2] = [word + " " for word in cuttings[2][:-1]] + cuttings[2][-1:]
    for samples in await asyncio.gather(*(streamed(server.url, one, config) for one in cuttings)):
        heard = samples[::STRIDE] / 32767
        assert heard.shape == expected.shape
        assert np.abs(heard - expected).max() < 1e-4


async def test_twelve_at_once_on_four_seats_equal_one_at_a_time(server: TinyServer) -> None:
    """Sampled, each with a seed: with a voice alone, and going on from a sound."""

    async def one(number: int) -> bytes:
        talk = STREAMED[number % len(STREAMED)]
        return (await pcm(server, talk, stage_params=SAMPLED, seed=number)).tobytes()

    alone = [await one(number) for number in range(12)]
    together = await asyncio.gather(*map(one, range(12)))
    assert len(set(alone)) == 12
    for before, beside in zip(alone, together, strict=True):
        sounds = [np.frombuffer(one, "<i2").astype(int) for one in (before, beside)]
        assert len(sounds[0]) == len(sounds[1])
        assert np.abs(sounds[0] - sounds[1]).max() <= 1  # of 32767: batches round


async def test_a_base_model_without_a_sound_is_refused(server: TinyServer) -> None:
    response = await post(server, {"model": server.model, "input": "Yes."})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "voice"


async def test_an_unknown_language_is_refused(server: TinyServer) -> None:
    response = await post(server, body(server, STREAMED[0], language="klingon"))
    assert response.status_code == 400
    assert "auto, chinese, english" in response.json()["error"]["message"]


async def test_chats_are_refused(server: TinyServer) -> None:
    asked = {"model": server.model, "messages": [{"role": "user", "content": "Hello"}]}
    response = await post(server, asked, "chat/completions")
    assert response.status_code == 400
    assert "text" in response.json()["error"]["message"]
