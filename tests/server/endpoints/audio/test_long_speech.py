"""Texts longer than one request: one file without a seam, one place, one usage."""

import base64
import io
import json
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.bodies import given_text
from support.api.doors import ONE_SHOT
from support.fakes.stages import FRAMES, SAMPLES_PER_FRAME
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.media.audio import samples_of

from omnistage.server.tasks.speech.requests import seed_of_piece
from omnistage.server.tasks.speech.speech_fields import MAX_TEXT
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Request

URL = "/v1/audio/speech"
PIECE = np.arange(sum(FRAMES) * SAMPLES_PER_FRAME, dtype="<i2")
SENTENCES = ["This is the first.", "And a second one!", "The third, is it?"]
TEXT = " ".join(SENTENCES)
WHOLE = np.concatenate([PIECE] * 3)
SPEAKS_ONLY = {
    "model": MODEL,
    "stages": {"talker": {"kind": "fake.talker"}, "code2wav": {"kind": "qwen3_omni.code2wav"}},
    "edges": [{"from": "talker", "to": "code2wav"}],
    "outputs": {"audio": "code2wav"},
}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("long")
    with running_gateway(folder, OMNI, speech=Speech(max_text=20), max_requests=1) as running:
        yield running


@pytest.fixture(scope="module")
def speaker(long: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=long.url, timeout=600, limits=ONE_SHOT) as connected:
        yield connected


def asked(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "voice": "ethan", "response_format": "pcm", **more}


def opened(gateway: RunningGateway, stage: str = "thinker") -> list[Request]:
    return [chunk.message for chunk in gateway.stages.stages[stage].opened]


def test_the_sound_of_all_pieces_is_one_file_in_every_format(speaker: httpx.Client) -> None:
    def spoken(form: str) -> bytes:
        response = speaker.post(URL, json=asked(response_format=form))
        assert response.status_code == 200, response.text
        return response.content

    assert spoken("pcm") == WHOLE.tobytes()
    data = spoken("wav")
    assert data.count(b"RIFF") == 1
    with wave.open(io.BytesIO(data)) as sound:
        assert sound.readframes(1 << 20) == WHOLE.tobytes()
    assert np.array_equal(samples_of(spoken("flac")), WHOLE)
    for form in ("mp3", "opus", "aac"):
        data = spoken(form)
        assert len(WHOLE) <= len(samples_of(data)) <= len(WHOLE) + 2 * 1152
    assert spoken("opus").count(b"OpusHead") == 1


def test_it_is_stretched_as_one(speaker: httpx.Client) -> None:
    response = speaker.post(URL, json=asked(speed=2.0))
    assert len(response.content) / 2 == len(WHOLE) / 2


def test_events_are_those_of_one_text_and_its_usage_is_the_sum(speaker: httpx.Client) -> None:
    with speaker.stream("POST", URL, json=asked(stream_format="sse")) as response:
        lines = [line for line in response.iter_lines() if line]
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == WHOLE.tobytes()
    num_tokens, num_frames = sum(map(len, SENTENCES)), 3 * sum(FRAMES)
    usage = {"input_tokens": num_tokens, "output_tokens": num_frames}
    usage["total_tokens"] = num_tokens + num_frames
    assert done == {"type": "speech.audio.done", "usage": usage}


def test_each_sentence_is_a_request_with_a_seed_of_its_own(
    speaker: httpx.Client, long: RunningGateway
) -> None:
    before = len(opened(long))
    assert speaker.post(URL, json=asked(seed=5, instructions="Whisper.")).status_code == 200
    requests = opened(long)[before:]
    assert [given_text(request).text for request in requests] == SENTENCES
    assert [request.seed for request in requests] == [5, seed_of_piece(5, 1), seed_of_piece(5, 2)]
    assert {given_text(request).instructions for request in requests} == {"Whisper."}
    assert {request.speaker for request in requests} == {"ethan"}


def test_the_first_piece_s_refusal_is_the_text_s(speaker: httpx.Client) -> None:
    response = speaker.post(URL, json=asked("refuse\n\nThen there is more."))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"


def test_a_later_piece_that_fails_breaks_the_file_off_or_is_an_event(
    speaker: httpx.Client, long: RunningGateway
) -> None:
    text = "This is the first.\n\nbreak"
    with speaker.stream("POST", URL, json=asked(text)) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
    with speaker.stream("POST", URL, json=asked(text, stream_format="sse")) as response:
        lines = [line for line in response.iter_lines() if line]
    assert "error" in json.loads(lines[-1].removeprefix("data: "))
    long.wait_until_idle()


def test_a_client_that_hangs_up_frees_the_stages_of_every_piece(
    speaker: httpx.Client, long: RunningGateway
) -> None:
    before = len(opened(long))
    with speaker.stream("POST", URL, json=asked("endless\n\nendless\n\nendless")) as response:
        for _ in response.iter_bytes():
            if len(opened(long)) == before + 2:
                break
    long.wait_until_idle()
    assert len(opened(long)) == before + 2
    assert speaker.post(URL, json=asked()).status_code == 200  # its one place is free again


def counted(client: httpx.Client, name: str) -> float:
    page = client.get("/metrics").text
    values = re.findall(rf"^omnistage_{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE)
    return sum(map(float, values))


def test_what_a_client_waits_for_is_counted_once(
    speaker: httpx.Client, long: RunningGateway
) -> None:
    names = ("time_to_first_audio_seconds_count", "audio_seconds_total", "answers_total")
    before = [counted(speaker, name) for name in names]
    assert speaker.post(URL, json=asked()).status_code == 200
    long.wait_until_idle()
    waits, seconds, answers = (
        counted(speaker, name) - old for name, old in zip(names, before, strict=True)
    )
    assert waits == 1
    assert seconds == pytest.approx(len(WHOLE) / 24_000)
    assert answers == 3


# How long a piece is


def test_without_a_word_of_the_stage_pieces_fit_the_talker(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    """Its 8192 positions have room for 1024 characters, less what is said of how to speak."""
    for instructions, longest in ("", 1024), ("x" * 4000, 524):
        before = len(opened(gateway))
        text = "Here is a sentence of words. " * 100
        response = client.post(URL, json=asked(text, instructions=instructions))
        assert response.status_code == 200
        texts = [given_text(request).text for request in opened(gateway)[before:]]
        assert " ".join(texts) == text.strip()
        assert longest - 29 < max(map(len, texts)) <= longest


def test_the_longest_text_is_spoken_and_a_longer_one_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("longest")
    with (
        running_gateway(folder, OMNI, speech=Speech(max_text=20_000)) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        response = client.post(URL, json=asked("é" * MAX_TEXT))
        assert response.content == PIECE.tobytes() * 5
        response = client.post(URL, json=asked("é" * (MAX_TEXT + 1)))
        assert response.json()["error"]["param"] == "input"


def test_long_instructions_leave_less_room_for_the_text_of_a_piece(tmp_path: Path) -> None:
    text = "Some words. " * 14
    with (
        running_gateway(tmp_path, OMNI, speech=Speech(max_text=200)) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        for instructions, num_pieces in (("Whisper.", 1), ("x" * 1200, 2)):
            before = len(opened(gateway))
            response = client.post(URL, json=asked(text, instructions=instructions))
            assert response.status_code == 200, response.text
            assert len(opened(gateway)) - before == num_pieces


# A graph that only speaks


@pytest.fixture
def speaks_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningGateway]:
    kind = Kind("tests:Talker", frozenset(), reads_out=True, makes=payloads(Payload.CODES))
    monkeypatch.setitem(KINDS, "fake.talker", kind)
    speech = Speech(["English"], max_text=20)
    with running_gateway(tmp_path_factory.mktemp("speaks"), SPEAKS_ONLY, speech=speech) as running:
        yield running


def test_a_graph_without_text_says_itself_how_many_tokens_there_are(
    speaks_only: RunningGateway,
) -> None:
    with httpx.Client(base_url=speaks_only.url, timeout=600) as client:
        talker: dict[str, Any] = {"stage_params": {"talker": {"temperature": 0.0}}}
        body = asked(stream_format="sse", language="english", **talker)
        with client.stream("POST", URL, json=body) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line]
        usage = json.loads(lines[-1].removeprefix("data: "))["usage"]
        assert usage["input_tokens"] == sum(map(len, SENTENCES))
        requests = opened(speaks_only, "talker")
        assert [request.outputs for request in requests] == [["audio"]] * 3
        assert {given_text(request).language for request in requests} == {"English"}
        assert requests[0].stage_params == {"talker": {"temperature": 0.0}}
        chat = {"messages": [{"role": "user", "content": "words"}]}
        assert client.post("/v1/chat/completions", json=chat).status_code == 400
