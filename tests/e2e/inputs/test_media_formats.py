"""Answers to media whatever their files are: those to the same samples and frames in plain ones."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import sound, sound_part, text, video_bytes
from support.hostile.bad_parts import url_part
from support.media.recorded import (
    UNKNOWN,
    decoded_frames,
    decoded_sound,
    encoded_sound,
    encoded_video,
    moving,
    plain_wav,
    tones,
    without_length,
)
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine

LIVE = {"live": "1"}
FAST, SLOW = tones(1, 16_000), tones(2, 8_000)


def flac(rate_hz: int) -> bytes:
    return encoded_sound(tones(1, rate_hz), rate_hz, "flac", "flac", "s16")


SOUNDS = {
    "WAV of size 0": (plain_wav(SLOW, 8_000, riff_size=0, data_size=0), 8_000),
    "WAV of size 0 at the model's rate": (
        plain_wav(FAST, 16_000, riff_size=0, data_size=0),
        16_000,
    ),
    "WAV of unknown size": (plain_wav(FAST, 16_000, riff_size=UNKNOWN, data_size=UNKNOWN), 16_000),
    "WAV of 8 bits": (plain_wav(FAST, 16_000, 8), 16_000),
    "WAV of 24 bits, stereo": (plain_wav(tones(1, 16_000, 2), 16_000, 24), 16_000),
    "FLAC of unknown length": (without_length(flac(24_000)), 24_000),
    "WebM of a recorder": (
        encoded_sound(tones(1, 48_000), 48_000, "webm", "libopus", "flt", LIVE),
        48_000,
    ),
    "AMR": (encoded_sound(tones(1, 8_000), 8_000, "amr", "libopencore_amrnb", "s16"), 8_000),
    "M4A": (encoded_sound(tones(1, 44_100, 2), 44_100, "ipod", "aac", "fltp"), 44_100),
}
VIDEOS = {
    "WebM of a recorder": encoded_video(moving(8), "webm", "libvpx", 4, LIVE),
    "Matroska of a recorder": encoded_video(moving(8), "matroska", "libx264", 4, LIVE),
    "MP4 of AV1": encoded_video(moving(8), "mp4", "libsvtav1", 4),
    "WebM of AV1": encoded_video(moving(8), "webm", "libsvtav1", 4),
    "transport stream": encoded_video(moving(8), "mpegts", "mpeg2video", 25),
    "GIF": encoded_video(moving(8), "gif", "gif", 4, pixel_format="rgb8"),
}


async def answered(server: TinyServer, part: dict[str, Any], **more: Any) -> Any:
    """The words of an answer, how likely each is, and how many tokens the question has."""
    asked = [{"role": "user", "content": [part, text("What is it?")]}]
    body = {"messages": asked, "max_tokens": 8, "temperature": 0, "logprobs": True, **more}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,) = answer["choices"]
    likely = [one["logprob"] for one in choice["logprobs"]["content"]]
    return choice["message"]["content"], np.array(likely), answer["usage"]["prompt_tokens"]


async def assert_same(server: TinyServer, *parts: dict[str, Any], **more: Any) -> None:
    """Both are answered alike. Channels averaged before or after resampling differ by 1e-7."""
    one, other = [await answered(server, part, **more) for part in parts]
    assert (one[0], one[2]) == (other[0], other[2])
    np.testing.assert_allclose(one[1], other[1], atol=1e-4)


@pytest.mark.parametrize("name", SOUNDS)
async def test_a_sound_is_answered_as_its_samples(name: str, server: TinyServer) -> None:
    data, rate_hz = SOUNDS[name]
    plain = plain_wav(decoded_sound(data).mean(axis=0)[None], rate_hz, 32, is_float=True)
    part, same = (url_part("audio_url", "audio/wav", one) for one in (data, plain))
    await assert_same(server, part, same)


@pytest.mark.parametrize("name", VIDEOS)
async def test_a_video_is_answered_as_its_frames(name: str, server: TinyServer) -> None:
    data = VIDEOS[name]
    rate = 25 if name == "transport stream" else 4
    plain = encoded_video(decoded_frames(data), "mov", "png", rate, pixel_format="rgb24")
    part, same = (url_part("video_url", "video/mp4", one) for one in (data, plain))
    await assert_same(server, part, same)
    more = {"media_io_kwargs": {"video": {"fps": 4, "max_frames": 6}}}
    await assert_same(server, part, same, **more)


async def test_uneven_frames_are_answered_as_those_that_are_shown(server: TinyServer) -> None:
    """OpenCV took these eight for 106."""
    times = [0, 0.1, 0.2, 0.3, 3.0, 3.1, 3.2, 3.3]
    data = encoded_video(moving(8), "webm", "libvpx", times, LIVE)
    # Six of 3.77 s, as of eight evenly apart the first, second, third, fifth, sixth and seventh.
    shown = [3 if time >= 0.3 else 0 for time in np.array([0, 1, 2, 4, 5, 6]) * 3.3 / 7]
    plain = encoded_video(decoded_frames(data)[shown], "mov", "png", 2, pixel_format="rgb24")
    part, same = (url_part("video_url", "video/mp4", one) for one in (data, plain))
    await assert_same(server, part, same)


async def test_a_streamed_flac_of_our_own_is_heard(server: TinyServer) -> None:
    """Its length is not known when it begins."""
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        asked = {"input": "Hello there.", "voice": "ethan", "response_format": "flac", "seed": 1}
        spoken = await client.post("/v1/audio/speech", json={**asked, "max_tokens": 12})
        assert spoken.status_code == 200, spoken.text
        data = spoken.content
        assert data[:4] == b"fLaC"
        assert int.from_bytes(data[21:26], "big") & ((1 << 36) - 1) == 0  # of samples
        rate_hz, seconds = 24_000, decoded_sound(data).shape[1] / 24_000
        plain = plain_wav(decoded_sound(data), rate_hz, 32, is_float=True)
        one = {"type": "input_audio", "input_audio": {"data": b64(data), "format": "flac"}}
        same = url_part("audio_url", "audio/wav", plain)
        await assert_same(server, one, same)
        form = {"response_format": "verbose_json", "max_completion_tokens": "8"}
        files = {"file": ("speech.flac", data)}
        written = await client.post("/v1/audio/transcriptions", data=form, files=files)
        assert written.status_code == 200, written.text
        assert written.json()["duration"] == pytest.approx(seconds)


async def test_the_same_file_twice_is_read_from_the_cache(server: TinyServer) -> None:
    for part in (
        url_part("audio_url", "audio/flac", flac(24_000)),
        url_part("video_url", "video/webm", VIDEOS["WebM of a recorder"]),
    ):
        first = await cached(server, part)
        again = await cached(server, part)
        assert first < again


async def cached(server: TinyServer, part: dict[str, Any]) -> int:
    """How many tokens of a question about this were in the prefix cache."""
    words = "Tell me more about it, please, and about the fox and the hound. " * 4
    asked = [{"role": "user", "content": [part, text(words)]}]
    body = {"messages": asked, "max_tokens": 2, "temperature": 0}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    details: dict[str, int] = response.json()["usage"]["prompt_tokens_details"]
    return details["cached_tokens"]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("at", ["chat", "tokenize", "responses"])
async def test_every_door_reads_a_file_so(at: str, server: TinyServer) -> None:
    audio = url_part("audio_url", "audio/flac", without_length(flac(24_000)))
    content = [audio, url_part("video_url", "video/webm", VIDEOS["WebM of a recorder"])]
    messages: list[Any] = [{"role": "user", "content": [*content, text("Both?")]}]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": messages, "max_tokens": 2}),
        "tokenize": ("/tokenize", {"messages": messages}),
        "responses": ("/v1/responses", {"input": messages, "max_output_tokens": 16}),
    }
    path, body = bodies[at]
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        broken = [{"role": "user", "content": [text("a"), url_part("video_url", "v/m", b"hello")]}]
        refused = await client.post(
            path, json={**body, ("input" if at == "responses" else "messages"): broken}
        )
    assert refused.status_code == 400
    error = refused.json()["error"]
    field = "input" if at == "responses" else "messages"
    assert error["param"] == f"{field}[0].content[1].video_url"
    assert "cannot be read: it is broken, or no sound or video" in error["message"]


async def test_a_heard_video_of_a_recorder_is_answered_as_a_plain_one(server: TinyServer) -> None:
    samples = sound(32_000)
    data = video_bytes(8, 64, samples, "matroska")
    more = {"mm_processor_kwargs": {"use_audio_in_video": True}}
    part = url_part("video_url", "video/mp4", data)
    await assert_same(server, part, part, **more)
    _, likely, num_tokens = await answered(server, part, **more)
    _, _, mute = await answered(server, part)
    _, _, alone = await answered(server, sound_part(samples))
    assert num_tokens > max(mute, alone)
    assert np.isfinite(likely).all()


@pytest.mark.parametrize(
    ("seconds", "param", "code", "words"),
    [
        (61, "messages[0].content[1]", "invalid_value", "tokens, more than the"),
        (660, "messages", "context_length_exceeded", "context length"),
    ],
)
async def test_a_sound_longer_than_the_model_takes_is_refused_by_the_model_s_limit(
    seconds: int, param: str, code: str, words: str, server: TinyServer
) -> None:
    """All of it is read, whatever vLLM's readers allow: it is the model that takes no more."""
    long = plain_wav(np.zeros((1, seconds * 8_000)), 8_000, 8)
    content = [text("a"), url_part("audio_url", "audio/wav", long)]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        response = await client.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert words in error["message"]
    assert "VLLM" not in error["message"]
