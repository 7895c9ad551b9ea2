"""Given text as speech: every format, whole, streamed and as events; refusals; hanging up."""

import base64
import io
import json
import wave
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, InternalServerError, OpenAI
from support.api.bodies import spoken_of
from support.api.openai_spec import assert_valid
from support.fakes.stages import FRAMES, SAMPLES_PER_FRAME, SPEAKERS
from support.faults.hanging_up import hang_up
from support.gateway.serving import MODEL, OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.media.audio import SHORTEST, num_samples_of, samples_of

from omnistage.stages.messages.to_stage import Request

URL = "/v1/audio/speech"
NUM_FRAMES = sum(FRAMES)
PCM = np.arange(NUM_FRAMES * SAMPLES_PER_FRAME, dtype="<i2")
TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def asked(text: str = "Hello there", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "voice": "ethan", **more}


def events_of(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", URL, json={**body, "stream_format": "sse"}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def last_request(gateway: RunningGateway) -> Request:
    return gateway.stages.stages["thinker"].last_request


@pytest.mark.parametrize("form", TYPES)
def test_the_sdk_gets_a_file_in_every_format(form: Any, openai: OpenAI) -> None:
    answer = openai.audio.speech.create(**asked(response_format=form))
    assert answer.response.headers["content-type"] == TYPES[form]
    data = answer.read()
    if form == "pcm":
        assert data == PCM.tobytes()
    elif form == "wav":
        with wave.open(io.BytesIO(data)) as sound:
            assert sound.readframes(10_000) == PCM.tobytes()
    elif form == "flac":
        assert np.array_equal(samples_of(data), PCM)
    else:
        assert len(PCM) <= len(samples_of(data)) <= len(PCM) + 2 * 1152


def test_the_sdk_streams_a_file_and_mp3_is_the_default(openai: OpenAI, tmp_path: Path) -> None:
    with openai.audio.speech.with_streaming_response.create(**asked()) as answer:
        assert answer.headers["content-type"] == "audio/mpeg"
        answer.stream_to_file(tmp_path / "speech.mp3")
    assert len(samples_of((tmp_path / "speech.mp3").read_bytes())) >= len(PCM)


def test_events_are_openai_s(client: httpx.Client) -> None:
    events = events_of(client, asked("Hello", response_format="pcm"))
    for event in events:
        assert_valid(event, "CreateSpeechResponseStreamEvent", "audio")
    *deltas, done = events
    assert [event["type"] for event in deltas] == ["speech.audio.delta"] * len(FRAMES)
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == PCM.tobytes()
    usage = {"input_tokens": 5, "output_tokens": NUM_FRAMES, "total_tokens": 5 + NUM_FRAMES}
    assert done == {"type": "speech.audio.done", "usage": usage}


def test_events_have_the_codes_of_their_sound_if_asked_for(client: httpx.Client) -> None:
    events = events_of(client, asked("Hello", response_format="pcm", return_codes=True))
    codes = [code for event in events for code in event.get("codes", ())]
    assert codes == [[frame, 9] for frame in range(NUM_FRAMES)]
    plain = events_of(client, asked("Hello", response_format="pcm"))
    assert not any("codes" in event for event in plain)


def test_codes_need_events(client: httpx.Client) -> None:
    response = client.post(URL, json=asked(return_codes=True))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_codes"


def test_events_carry_one_file(client: httpx.Client) -> None:
    events = events_of(client, asked(response_format="flac"))
    data = b"".join(base64.b64decode(event.get("audio", "")) for event in events)
    assert np.array_equal(samples_of(data), PCM)


def test_the_stages_get_the_text_and_how_to_speak_it(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    talker = {"temperature": 0.0, "max_tokens": 9}
    more = {"instructions": "Whisper.", "seed": 3, "stage_params": {"talker": talker}}
    body = asked("Say this.", voice={"id": "Chelsie"}, **more)
    assert client.post(URL, json=body).status_code == 200
    request = last_request(gateway)
    said = {"input": "Say this.", "instructions": "Whisper."}
    assert request.body == spoken_of(said)
    assert request.speaker == "chelsie"
    assert request.seed == 3
    assert request.stage_params == {"talker": talker}


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_speed(speed: float, client: httpx.Client) -> None:
    answer = client.post(URL, json=asked("many frames", speed=speed, response_format="pcm"))
    assert answer.status_code == 200
    assert len(answer.content) / 2 == len(PCM) / speed


@pytest.mark.parametrize("form", TYPES)
def test_speech_without_words_is_a_file_without_samples(form: str, client: httpx.Client) -> None:
    answer = client.post(URL, json=asked("silent", response_format=form))
    assert answer.status_code == 200
    assert bool(answer.content) == (form != "pcm")
    assert num_samples_of(form, answer.content) <= SHORTEST[form]
    *deltas, done = events_of(client, asked("silent", response_format=form))
    streamed = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert bool(streamed) == (form != "pcm")
    assert num_samples_of(form, streamed) <= SHORTEST[form]
    assert done["usage"]["output_tokens"] == 0


REFUSED = [
    ({"input": ""}, "input"),
    ({"input": "x" * 100_001}, "input"),
    ({"input": ["x"]}, "input"),
    ({"input": " \n"}, "input"),
    ({"input": "\u200b\u200d\ufeff"}, "input"),
    ({"voice": "nobody"}, "voice"),
    ({"voice": {"name": "ethan"}}, "voice"),
    ({"response_format": "pcm16"}, "response_format"),
    ({"speed": 0.2}, "speed"),
    ({"speed": 4.1}, "speed"),
    ({"speed": "2"}, "speed"),
    ({"stream_format": "json"}, "stream_format"),
    ({"instructions": "x" * 4097}, "instructions"),
    ({"stage_params": {"thinker": {"temperature": 0}}}, "stage_params.thinker"),
    ({"stage_params": {"code2wav": {}}}, "stage_params.code2wav"),
    ({"input": "refuse"}, "input"),
]


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize(("more", "param"), REFUSED)
def test_a_refusal_names_the_field(
    more: dict[str, Any], param: str, stream_format: str, client: httpx.Client
) -> None:
    response = client.post(URL, json={**asked(stream_format=stream_format), **more})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert_valid(response.json(), "ErrorResponse", "audio")


def test_the_longest_text_is_spoken(client: httpx.Client) -> None:
    assert client.post(URL, json=asked("é" * 4096)).status_code == 200


def test_an_unknown_voice_is_told_the_voices(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError) as raised:
        openai.audio.speech.create(**asked(voice="alloy"))
    assert all(name in raised.value.message for name in SPEAKERS)


def test_another_model_and_unknown_fields(client: httpx.Client) -> None:
    response = client.post(URL, json={**asked(), "model": "tts-1"})
    assert response.status_code == 404
    response = client.post(URL, json=asked(zork=1, stream=True))
    assert response.headers["x-omnistage-warning"] == "unknown fields without effect: zork"


def test_a_failure_after_the_first_sound_breaks_the_file_or_is_an_event(
    client: httpx.Client,
) -> None:
    with client.stream("POST", URL, json=asked("break", response_format="pcm")) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
    first, failure = events_of(client, asked("break", response_format="pcm"))
    assert first["type"] == "speech.audio.delta"
    assert failure["error"]["type"] == "server_error"


def test_a_client_that_hangs_up_frees_the_stages(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    with client.stream("POST", URL, json=asked("endless")) as response:
        next(response.iter_bytes())
    gateway.wait_until_idle()
    thinker = gateway.stages.stages["thinker"]
    hang_up(gateway.url + URL, lambda: thinker.tasks, json=asked("hang"))
    gateway.wait_until_idle()


def test_a_graph_that_cannot_speak_says_so(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, TEXT_ONLY) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        response = client.post(URL, json=asked())
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "unsupported_model"
        assert client.get("/v1/audio/voices").json()["voices"] == []


def test_a_loading_stage_is_a_503_with_a_time_to_retry(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, loading=frozenset({"talker"})) as gateway,
        OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as openai,
    ):
        with pytest.raises(InternalServerError) as raised:
            openai.audio.speech.create(**asked())
        assert raised.value.code == "loading"
        assert int(raised.value.response.headers["retry-after"]) >= 1
        assert httpx.get(f"{gateway.url}/v1/audio/voices").status_code == 503


# What clients with a picker ask


def test_voices_and_models_are_listed(client: httpx.Client) -> None:
    told = client.get("/v1/audio/voices").json()
    assert {voice["id"]: voice["name"] for voice in told["voices"]} == dict(
        zip(SPEAKERS, SPEAKERS, strict=True)
    )
    assert told["names"] == SPEAKERS
    plain = client.get("/v1/audio/voices", params={"format": "vllm"}).json()
    assert plain == {"voices": SPEAKERS, "uploaded_voices": []}
    assert client.get("/v1/audio/voices", params={"format": "x"}).status_code == 400
    assert client.get("/v1/audio/models").json()["models"][0]["id"] == MODEL
