"""Speech of stages with any rate, mono and stereo: files, their lengths and what is counted."""

import base64
import io
import re
import struct
import wave
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from support.api.doors import ONE_SHOT
from support.fakes.stages import FRAMES, SAMPLES_PER_FRAME, FakeGraph
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.media.audio import channels_of, num_channels_of, rate_of
from support.waiting import wait_until

from omnistage.server.runtime.samples import SampleFormat
from omnistage.stages.messages.to_gateway import NumChannels

CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
NUM_FRAMES = sum(FRAMES)
SAMPLES = np.arange(NUM_FRAMES * SAMPLES_PER_FRAME, dtype="<i2")
MADE: dict[int, npt.NDArray[np.int16]] = {1: SAMPLES[:, None], 2: np.stack([SAMPLES, -SAMPLES], 1)}
RAW_RATE_HZ = 24_000
PADDING = 2 * 1152  # at most: what mp3 and aac put before and after the samples
CODED = ["mp3", "aac", "opus"]


@pytest.fixture(scope="module", params=[8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def rate_hz(request: pytest.FixtureRequest) -> int:
    rate: int = request.param
    return rate


@pytest.fixture(scope="module", params=[1, 2], ids=["mono", "stereo"])
def num_channels(request: pytest.FixtureRequest) -> NumChannels:
    num: NumChannels = request.param
    return num


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("rate"), OMNI) as running:
        yield running


@pytest.fixture(scope="module")
def client(
    gateway: RunningGateway, rate_hz: int, num_channels: NumChannels
) -> Iterator[httpx.Client]:
    """Of a gateway whose stage says now that it makes such samples."""
    gateway.do(partial(announce, gateway.stages, rate_hz, num_channels))
    with httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT) as connected:
        wait_until(lambda: layout_of(speech(connected, "wav")) == (num_channels, rate_hz))
        yield connected


def announce(stages: FakeGraph, rate_hz: int, num_channels: NumChannels) -> None:
    stages.sample_rate_hz, stages.num_channels = rate_hz, num_channels
    stages.stages["code2wav"].become_ready()


def layout_of(wav: bytes) -> tuple[int, int]:
    """The channels and the rate that the header says."""
    num_channels, rate_hz = struct.unpack_from("<HI", wav, 22)
    return num_channels, rate_hz


def speech(client: httpx.Client, form: str, **more: Any) -> bytes:
    body = {"model": MODEL, "input": "many frames", "response_format": form, **more}
    answer = client.post(SPEECH, json=body)
    assert answer.status_code == 200, answer.text
    return answer.content


def chat(client: httpx.Client, form: str) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "words"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": form},
    }
    answer: dict[str, Any] = client.post(CHAT, json=body).json()
    return answer


def sound_of(answer: dict[str, Any]) -> bytes:
    return base64.b64decode(answer["choices"][0]["message"]["audio"]["data"])


def check_wav(data: bytes, made: SampleFormat) -> None:
    with wave.open(io.BytesIO(data)) as sound:
        assert sound.getframerate() == made.rate_hz
        assert sound.getnchannels() == made.num_channels
        assert sound.readframes(10_000) == MADE[made.num_channels].tobytes()


def check_raw(data: bytes, made: SampleFormat) -> None:
    """OpenAI's rate, mono, and as long as the samples are."""
    seconds = len(SAMPLES) / made.rate_hz
    assert len(data) / 2 == pytest.approx(seconds * RAW_RATE_HZ, abs=2)


def check_coded(data: bytes, form: str, made: SampleFormat) -> None:
    """The channels and the rate of the samples, where that can be, and as long as they are."""
    file_rate_hz = rate_of(data)
    assert file_rate_hz == (48_000 if form == "opus" else made.rate_hz)
    assert num_channels_of(data) == made.num_channels
    wanted = len(SAMPLES) * file_rate_hz / made.rate_hz
    read = channels_of(data, made.num_channels, file_rate_hz)
    assert -2 <= len(read) - wanted <= PADDING


@pytest.fixture(scope="module")
def made(rate_hz: int, num_channels: NumChannels) -> SampleFormat:
    return SampleFormat(rate_hz, num_channels)


def test_a_spoken_text_has_the_rate_and_channels_of_its_stage(
    client: httpx.Client, made: SampleFormat
) -> None:
    check_wav(speech(client, "wav"), made)
    flac = speech(client, "flac")
    assert rate_of(flac) == made.rate_hz
    assert num_channels_of(flac) == made.num_channels
    read = channels_of(flac, made.num_channels, made.rate_hz)
    assert np.array_equal(read, MADE[made.num_channels])


@pytest.mark.parametrize("form", CODED)
def test_a_spoken_text_is_as_long_in_every_format(
    form: str, client: httpx.Client, made: SampleFormat
) -> None:
    check_coded(speech(client, form), form, made)


def test_raw_samples_are_openai_s(client: httpx.Client, made: SampleFormat) -> None:
    check_raw(speech(client, "pcm"), made)
    check_raw(sound_of(chat(client, "pcm16")), made)


def test_a_spoken_answer_has_the_rate_and_channels_of_its_stage(
    client: httpx.Client, made: SampleFormat
) -> None:
    check_wav(sound_of(chat(client, "wav")), made)
    flac = sound_of(chat(client, "flac"))
    read = channels_of(flac, made.num_channels, made.rate_hz)
    assert np.array_equal(read, MADE[made.num_channels])
    for form in CODED:
        check_coded(sound_of(chat(client, form)), form, made)


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_another_speed_changes_the_length_alone(
    speed: float, client: httpx.Client, made: SampleFormat
) -> None:
    with wave.open(io.BytesIO(speech(client, "wav", speed=speed))) as sound:
        assert sound.getframerate() == made.rate_hz
        assert sound.getnchannels() == made.num_channels
        data = sound.readframes(100_000)
    assert len(data) / made.num_bytes == len(SAMPLES) / speed


def audio_seconds(client: httpx.Client) -> float:
    found = re.search(
        r"^omnistage_audio_seconds_total\S* (\S+)$", client.get("/metrics").text, re.M
    )
    return 0.0 if found is None else float(found[1])


def test_seconds_are_counted_at_the_rate_and_channels_of_the_stage(
    client: httpx.Client, rate_hz: int
) -> None:
    before = audio_seconds(client)
    usage = chat(client, "wav")["usage"]
    assert usage["completion_tokens_details"]["audio_tokens"] == NUM_FRAMES
    assert audio_seconds(client) - before == pytest.approx(len(SAMPLES) / rate_hz)


def test_a_stage_that_does_not_say_its_rate_is_an_error(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("none")
    with running_gateway(folder, OMNI, sample_rate_hz=None) as running:
        answer = httpx.post(running.url + SPEECH, json={"model": MODEL, "input": "words"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "unknown_sample_rate"
    assert "code2wav" in answer.json()["error"]["message"]
