"""POST /v1/audio/generate over a stage that sends stereo."""

import io
from collections.abc import Iterator
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
from support.api.doors import ONE_SHOT
from support.faults.hanging_up import hang_up
from support.gateway.serving import MODEL, OMNI, SYNTH, RunningGateway, running_gateway
from support.gateway.taken_drawing import TakenDrawing
from support.media.pictures import png
from support.media.sounds import data_url, tone, wav_of
from support.waiting import wait_until

from omnistage.server.endpoints.audio.speech import CONTENT_TYPES

URL = "/v1/audio/generate"
RATE = 24_000
ASKED = {"input": "Rain on a tin roof.", "audio_length": 0.5}


@pytest.fixture(scope="module")
def synth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("synth"), SYNTH, arena_mb=16) as running:
        yield running


@pytest.fixture(scope="module")
def client(synth: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=synth.url, timeout=600, limits=ONE_SHOT) as connected:
        yield connected


def samples_of(data: bytes) -> tuple[int, npt.NDArray[np.float32]]:
    """The rate of a file, and its samples [channels, n]."""
    with av.open(io.BytesIO(data)) as container:
        (stream,) = container.streams
        resampler = av.AudioResampler(format="fltp")
        frames = [one for frame in container.decode(stream) for one in resampler.resample(frame)]
        return stream.rate, np.concatenate([one.to_ndarray() for one in frames], axis=1)


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_the_default_is_a_wav_with_every_sample_of_both_channels(client: httpx.Client) -> None:
    answer = client.post(URL, json=ASKED)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/wav"
    rate, samples = samples_of(answer.content)
    expected = np.arange(RATE // 2) % 1000 / 32768
    assert rate == RATE
    np.testing.assert_allclose(samples, np.stack([expected, -expected]), atol=1e-6)


def test_audio_that_is_longer_than_messages_of_a_channel_comes_whole(client: httpx.Client) -> None:
    seconds = 200  # 19 MB; half a ring holds 8
    answer = client.post(URL, json={**ASKED, "audio_length": seconds})
    assert answer.status_code == 200, answer.text
    _, samples = samples_of(answer.content)
    expected = np.arange(seconds * RATE) % 1000 / 32768
    np.testing.assert_allclose(samples, np.stack([expected, -expected]), atol=1e-6)


@pytest.mark.parametrize("file_format", CONTENT_TYPES)
def test_each_format_of_speech_is_one_of_generated_audio(
    file_format: str, client: httpx.Client
) -> None:
    answer = client.post(URL, json={**ASKED, "response_format": file_format})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == CONTENT_TYPES[file_format]
    if file_format == "pcm":  # as OpenAI's: 24 kHz, mono
        assert len(answer.content) == RATE
        return
    rate, samples = samples_of(answer.content)
    assert rate == (48_000 if file_format == "opus" else RATE)
    assert len(samples) == 2, "stereo is kept"
    assert samples.shape[1] / rate == pytest.approx(0.5, abs=0.1)


def test_fields_reach_the_stage(client: httpx.Client, synth: RunningGateway) -> None:
    more = {
        "audio_start": 1.5,
        "negative_prompt": "hiss",
        "guidance_scale": 3.5,
        "num_inference_steps": 6,
        "lyrics": "[verse]\nLa la",
        "lora": [{"name": "brass", "scale": 0.5}],
        "extra": {"bpm": 120},
    }
    answer = client.post(URL, json={**ASKED, **more, "seed": 7, "model": MODEL, "colour": 1})
    assert answer.status_code == 200, answer.text
    assert "colour" in answer.headers["x-omnistage-warning"]
    taken = TakenDrawing(synth.stages.stages["synth"])
    sent = {"prompt": ASKED["input"], "audio_length": 0.5, **more}
    assert {name: taken.fields[name] for name in sent} == sent
    chunk = synth.stages.stages["synth"].opened[-1]
    assert (chunk.message.seed, chunk.message.outputs) == (7, ["audio"])


@pytest.mark.parametrize("field", ["audio", "reference_audio"])
@pytest.mark.parametrize("way", ["form", "data URL", "part"])
@pytest.mark.parametrize("channels", [1, 2])
def test_given_audio_reaches_the_stage_at_its_rate(
    field: str, way: str, channels: int, client: httpx.Client, synth: RunningGateway
) -> None:
    wave = tone(0.25, 16_000)
    given = wave if channels == 1 else np.stack([wave, -wave], axis=1)
    data = wav_of(given, 16_000)
    if way == "form":
        form = {"input": "Rain.", "audio_length": "0.5", "extra": '{"strength": 0.5}'}
        answer = client.post(URL, data=form, files={field: ("a.wav", data)})
    else:
        url = data_url(data)
        audio = url if way == "data URL" else {"audio_url": url}
        answer = client.post(URL, json={**ASKED, field: audio, "extra": {"strength": 0.5}})
    assert answer.status_code == 200, answer.text
    taken = TakenDrawing(synth.stages.stages["synth"])
    assert taken.fields["audio_length"] == 0.5
    assert taken.fields["extra"] == {"strength": 0.5}
    assert [(one.field, one.rate) for one in taken.media] == [(field, 16_000)]
    expected = given.reshape(-1, channels).T / 32768
    np.testing.assert_allclose(taken.array(0), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", ""),
        ("input", None),
        ("audio_length", 0),
        ("audio_length", -1),
        ("audio_length", 601),
        ("audio_length", 1e308),
        ("audio_length", "long"),
        ("audio_start", -1),
        ("guidance_scale", -1),
        ("num_inference_steps", 0),
        ("num_inference_steps", 1001),
        ("seed", "a"),
        ("lyrics", "a" * 32_001),
        ("response_format", "midi"),
        ("extra", [1]),
        ("extra", {str(one): 1 for one in range(65)}),
        ("audio", "nothing"),
        ("audio", {"image_url": "data:,"}),
        ("audio", []),
        ("audio", data_url(b"RIFF")),
        ("audio", data_url(png(8, 8))),
        ("audio", data_url(wav_of(np.zeros(0, np.int16)))),
    ],
)
def test_what_cannot_be_made_is_a_400_that_names_the_field(
    field: str, value: Any, client: httpx.Client, synth: RunningGateway
) -> None:
    before = len(synth.stages.stages["synth"].opened)
    error = error_of(client.post(URL, json={**ASKED, field: value}))
    assert error["param"].partition(".")[0] == field
    assert len(synth.stages.stages["synth"].opened) == before


def test_a_refusal_of_the_stage_is_passed_on(client: httpx.Client) -> None:
    error = error_of(client.post(URL, json={**ASKED, "input": "refuse"}))
    assert (error["param"], error["message"]) == ("lyrics", "this pipeline takes no lyrics")


def test_a_client_that_hangs_up_ends_its_request(synth: RunningGateway) -> None:
    stage = synth.stages.stages["synth"]
    hang_up(f"{synth.url}{URL}", lambda: stage.tasks, json={**ASKED, "input": "hang"})
    wait_until(lambda: stage.opened[-1].request_id in stage.cancelled)


def test_speech_of_a_text_is_another_endpoint(
    client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    error = error_of(client.post("/v1/audio/speech", json={"input": "Hello."}))
    assert "POST /v1/audio/generate" in error["message"]
    with running_gateway(tmp_path_factory.mktemp("omni"), OMNI) as omni:
        error = error_of(httpx.post(f"{omni.url}{URL}", json=ASKED))
        assert "This model speaks" in error["message"]
        assert error["code"] == "unsupported_model"


def test_the_example_of_the_description_is_answered(client: httpx.Client) -> None:
    body = client.get("/openapi.json").json()["paths"][URL]["post"]["requestBody"]["content"]
    assert "audio" in body["multipart/form-data"]["schema"]["properties"]
    (example,) = body["application/json"]["examples"].values()
    assert client.post(URL, json=example["value"]).status_code == 200
