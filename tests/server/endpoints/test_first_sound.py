"""Spoken answers that would begin too late are refused at once, on every endpoint that speaks."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.chats import TEXT, URL, spoken
from support.gateway.serving import MODEL, OMNI, SYNTH, RunningGateway, running_gateway
from support.realtime.client import talking
from support.waiting import wait_until
from websockets.sync.client import connect

from omnistage.server.runtime import first_sound

MANUAL = {"audio": {"input": {"turn_detection": None}}}
SPEECH = {"model": MODEL, "input": "words", "voice": "ethan", "response_format": "pcm"}
REFUSED = "The first sound would take more than 60 s: the server has 1 spoken answers."


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    """A gateway with one place for a spoken answer, which is taken."""
    monkeypatch.setattr(first_sound, "FIRST_PLACES", 1)
    with running_gateway(tmp_path, OMNI, first_sound_s=60.0) as gateway, taken(gateway):
        yield gateway


@contextlib.contextmanager
def taken(gateway: RunningGateway) -> Iterator[None]:
    """A spoken answer is in the server that has not begun to sound."""
    ticket = gateway.do(lambda: gateway.runtime.flights.admit(["text", "audio"]))
    try:
        yield
    finally:
        gateway.do(lambda: ticket.__exit__(None, None, None))


def settle(gateway: RunningGateway, num_left: int) -> None:
    """Return once so many requests have a place: the others have given theirs back."""
    flights = gateway.runtime.flights
    wait_until(lambda: gateway.do(lambda: flights.num_waiting + flights.num_running) == num_left)


def metric(gateway: RunningGateway, name: str) -> float:
    page = httpx.get(f"{gateway.url}/metrics").text
    return float(next(line for line in page.splitlines() if line.startswith(name)).split()[-1])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, spoken("words")),
        (URL, spoken("words", stream=True)),
        ("/v1/audio/speech", SPEECH),
        ("/v1/audio/speech", {**SPEECH, "stream_format": "sse"}),
    ],
)
def test_a_spoken_answer_is_refused_at_once(
    path: str, body: dict[str, Any], full: RunningGateway
) -> None:
    response = httpx.post(full.url + path, json=body, timeout=600)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    error = response.json()["error"]
    assert error == {
        "message": REFUSED,
        "type": "server_error",
        "param": None,
        "code": "server_overloaded",
    }
    assert metric(full, "omnistage_spoken_refused_total") == 1
    assert metric(full, "omnistage_spoken_places") == 1


def test_a_text_on_a_socket_is_refused_at_once(full: RunningGateway) -> None:
    url = full.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    with connect(url, compression=None) as ws:
        config = {"type": "session.config", "model": MODEL, "voice": "ethan"}
        ws.send(json.dumps(config))
        ws.send(json.dumps({"type": "input.text", "text": "words"}))
        ws.send(json.dumps({"type": "input.done"}))
        told = json.loads(ws.recv(600))
        while told["type"] != "error":
            told = json.loads(ws.recv(600))
    assert told["error"]["code"] == "server_overloaded"


def test_a_response_of_a_session_fails_and_the_session_goes_on(full: RunningGateway) -> None:
    with talking(full) as talk:
        talk.update(**MANUAL)
        talk.write("words")
        response = talk.answer()
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"] == "server_overloaded"
        talk.update(output_modalities=["text"])
        assert talk.answer()["status"] == "completed"


def test_an_answer_of_text_is_not_limited(full: RunningGateway) -> None:
    for _ in range(3):
        assert httpx.post(full.url + URL, json=TEXT, timeout=600).status_code == 200
    assert metric(full, "omnistage_spoken_refused_total") == 0


def test_a_place_is_free_when_its_answer_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_sound, "FIRST_PLACES", 1)
    with running_gateway(tmp_path, OMNI, first_sound_s=60.0) as gateway:
        with taken(gateway):
            assert httpx.post(gateway.url + URL, json=spoken("words")).status_code == 503
        assert httpx.post(gateway.url + URL, json=spoken("words")).status_code == 200


def test_first_sounds_that_are_in_time_make_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_sound, "FIRST_PLACES", 1)
    with running_gateway(tmp_path, OMNI, first_sound_s=60.0) as gateway:
        for num_places in range(1, 4):
            assert metric(gateway, "omnistage_spoken_places") == num_places
            with contextlib.ExitStack() as others:
                for _ in range(num_places - 1):
                    others.enter_context(taken(gateway))
                assert httpx.post(gateway.url + URL, json=spoken("words")).status_code == 200
            settle(gateway, 0)


def test_first_sounds_that_are_late_take_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sound is there within a microsecond."""
    with running_gateway(tmp_path, OMNI, first_sound_s=1e-6) as gateway, taken(gateway):
        for _ in range(first_sound.TOO_LATE):
            assert metric(gateway, "omnistage_spoken_places") == first_sound.FIRST_PLACES
            assert httpx.post(gateway.url + URL, json=spoken("words")).status_code == 200
            settle(gateway, 1)
        assert metric(gateway, "omnistage_spoken_places") == 1
        assert httpx.post(gateway.url + URL, json=spoken("words")).status_code == 503


def test_sound_that_is_made_of_a_description_is_not_limited(tmp_path: Path) -> None:
    with running_gateway(tmp_path, SYNTH, first_sound_s=0.001) as gateway:
        assert gateway.runtime.flights.spoken is None
