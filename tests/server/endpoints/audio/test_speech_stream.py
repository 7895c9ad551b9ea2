"""A text spoken while it comes, over a WebSocket: answers, refusals, cancels, hostile clients."""

import base64
import contextlib
import io
import json
import re
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.bodies import given_text
from support.fake_stages import SAMPLES_PER_FRAME
from support.gateway import MODEL, OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from omnistage.server.endpoints.audio import speech_stream, speech_stream_events
from omnistage.server.endpoints.audio.speech_stream import IDLE_S
from omnistage.server.http.access.cors import Cors
from omnistage.server.http.access.keys import Keys
from omnistage.server.http.protocol.socket_life import NORMAL, POLICY, RESTART
from omnistage.server.http.protocol.socket_protocol import MAX_FRAGMENTS
from omnistage.server.runtime.text_input import TextInput
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Cancel, MoreText, Request

PATH = "/v1/audio/speech/stream"
CONFIG = {"type": "session.config", "model": MODEL, "voice": "ethan", "response_format": "pcm"}
PIECES = Speech(takes_pieces=True)


@pytest.fixture(scope="module")
def piecewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose model takes its text as it comes."""
    folder = tmp_path_factory.mktemp("piecewise")
    with running_gateway(folder, OMNI, speech=PIECES) as running:
        yield running


@contextlib.contextmanager
def opened(gateway: RunningGateway, **options: Any) -> Iterator[ClientConnection]:
    url = gateway.url.replace("http", "ws", 1) + PATH
    with connect(url, open_timeout=600, close_timeout=2, compression=None, **options) as ws:
        yield ws
    gateway.wait_until_idle()


def say(ws: ClientConnection, kind: str, **fields: Any) -> None:
    ws.send(json.dumps({"type": kind, **fields}))


def configured(ws: ClientConnection, **more: Any) -> None:
    ws.send(json.dumps({**CONFIG, **more}))


def heard(ws: ClientConnection) -> dict[str, Any] | bytes:
    got = ws.recv(timeout=600)
    return got if isinstance(got, bytes) else json.loads(got)


def event(ws: ClientConnection) -> dict[str, Any]:
    got = heard(ws)
    assert isinstance(got, dict), got
    return got


def until_done(ws: ClientConnection) -> tuple[bytes, list[dict[str, Any]]]:
    """The sound and the events up to the end of an answer."""
    sound, events = b"", []
    while True:
        got = heard(ws)
        if isinstance(got, bytes):
            sound += got
        else:
            events.append(got)
            if got["type"] == "session.done":
                return sound, events


def code_of(ws: ClientConnection) -> int:
    """With which code the connection is closed, after all that comes before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            ws.recv(timeout=600)
    assert ws.close_code is not None
    return ws.close_code


def samples(num_frames: int) -> bytes:
    return np.arange(num_frames * SAMPLES_PER_FRAME, dtype="<i2").tobytes()


def texts_sent(gateway: RunningGateway) -> list[tuple[str, bool]]:
    """The pieces that followed the last request, and whether each was the last."""
    seen = gateway.do(lambda: list(gateway.stages.stages["thinker"].seen))
    last = [chunk.request_id for chunk in seen if isinstance(chunk.message, Request)][-1]
    of_last = [chunk for chunk in seen if chunk.request_id == last]
    return [
        (chunk.message.text, chunk.last) for chunk in of_last if isinstance(chunk.message, MoreText)
    ]


# Answers


def test_sound_comes_while_text_still_comes(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, instructions="Whisper.", seed=3)
        say(ws, "input.text", text="Hel")
        start = event(ws)
        assert start == {
            "type": "audio.start",
            "utterance_index": 0,
            "sentence_index": 0,
            "sentence_text": "Hel",
            "format": "pcm",
            "sample_rate": 24_000,
            "channels": 1,
        }
        assert heard(ws) == samples(1)
        say(ws, "input.text", text="lo")
        assert heard(ws) == samples(2)[len(samples(1)) :]
        say(ws, "input.done")
        sound, (audio, session) = until_done(ws)
    assert sound == b""
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    expected = {"utterance_index": 0, "sentence_index": 0, "total_bytes": len(samples(2))}
    assert audio == {"type": "audio.done", **expected, "error": False, "usage": usage}
    done = {"type": "session.done", "utterance_index": 0, "total_sentences": 1}
    assert session == {**done, "status": "completed"}
    request = piecewise.stages.stages["thinker"].last_request
    body = given_text(request)
    assert body.text == "Hel"
    assert body.is_open
    assert (body.instructions, request.speaker, request.seed) == ("Whisper.", "ethan", 3)
    assert texts_sent(piecewise) == [("lo", False), ("", True)]


def test_answers_follow_each_other_with_the_last_configuration(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        for number, voice in enumerate(("ethan", "ethan", "chelsie")):
            if number == 2:
                configured(ws, voice="chelsie")
            say(ws, "input.text", text="One. ")
            say(ws, "input.text", text="Two.")
            say(ws, "input.done")
            sound, events = until_done(ws)
            assert sound
            assert {one["utterance_index"] for one in events} == {number}
            assert piecewise.stages.stages["thinker"].last_request.speaker == voice


def test_texts_that_are_sent_ahead_wait_for_their_turn(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        for text in ("a", "b", "c"):
            say(ws, "input.text", text=text)
            say(ws, "input.done")
        told = [until_done(ws)[1] for _ in range(3)]
    assert [events[-1]["utterance_index"] for events in told] == [0, 1, 2]
    assert all(events[-1]["status"] == "completed" for events in told)


def test_a_text_that_comes_at_once_is_spoken_in_the_same_way(piecewise: RunningGateway) -> None:
    """Whether its end came before it began to be spoken is a matter of moments."""
    with opened(piecewise) as ws:
        configured(ws)
        for text in ("One. ", "Two. "):
            say(ws, "input.text", text=text)
            say(ws, "input.done")
        until_done(ws), until_done(ws)
    request = piecewise.stages.stages["thinker"].last_request
    assert (given_text(request).text, given_text(request).is_open) == ("Two. ", True)
    assert texts_sent(piecewise)[-1] == ("", True)


def test_an_empty_text_is_done_at_once(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="")
        say(ws, "input.done")
        _, (done,) = until_done(ws)
    assert (done["total_sentences"], done["status"]) == (0, "completed")


@pytest.mark.parametrize("takes_pieces", [True, False])
def test_a_text_of_blanks_alone_fails_and_the_session_goes_on(
    takes_pieces: bool, piecewise: RunningGateway, gateway: RunningGateway
) -> None:
    running = piecewise if takes_pieces else gateway
    with opened(running) as ws:
        configured(ws)
        for piece in (" ", "\u200b", "\n\ufeff"):
            say(ws, "input.text", text=piece)
        say(ws, "input.done")
        sound, (error, done) = until_done(ws)
        assert (sound, error["type"], error["error"]["param"]) == (b"", "error", "text")
        assert (error["utterance_index"], done["status"]) == (0, "failed")
        say(ws, "input.text", text="One.")
        say(ws, "input.done")
        sound, events = until_done(ws)
        assert (bool(sound), events[-1]["status"]) == (True, "completed")


def test_blanks_before_a_text_are_sent_with_its_first_words(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        for piece in (" ", "\u200b", "Hm"):
            say(ws, "input.text", text=piece)
        say(ws, "input.done")
        until_done(ws)
    request = piecewise.stages.stages["thinker"].last_request
    sent = given_text(request).text + "".join(text for text, _ in texts_sent(piecewise))
    assert sent == " \u200bHm"
    assert given_text(request).text.endswith("Hm")


def test_a_text_of_which_only_blanks_come_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextInput.__init__, "__defaults__", (0.3, 600.0))
    with running_gateway(tmp_path, OMNI, speech=PIECES) as gateway, opened(gateway) as ws:
        configured(ws)
        say(ws, "input.text", text=" ")
        _, (error, done) = until_done(ws)
    assert (error["error"]["code"], done["status"]) == ("text_timeout", "failed")


def test_sound_as_base64(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, audio_encoding="base64")
        say(ws, "input.text", text="Hm")
        say(ws, "input.done")
        sound, events = until_done(ws)
    assert sound == b""
    chunks = [one for one in events if one["type"] == "audio.chunk"]
    data = b"".join(base64.b64decode(one["audio_b64"]) for one in chunks)
    done = next(one for one in events if one["type"] == "audio.done")
    assert data
    assert len(data) == done["total_bytes"]


def test_a_file_of_another_format_is_whole(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, response_format="wav", speed=2.0)
        say(ws, "input.text", text="a")
        assert event(ws)["format"] == "wav"
        say(ws, "input.text", text="b")
        say(ws, "input.done")
        sound, _ = until_done(ws)
    with wave.open(io.BytesIO(sound)) as file:
        assert len(file.readframes(100_000)) == len(samples(2)) / 2


def test_fields_without_effect_are_warned_of(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, zork=1, stream_audio=True)
        say(ws, "input.text", text="a")
        assert event(ws)["warning"] == "unknown fields without effect: zork"
        say(ws, "input.done")
        until_done(ws)


def test_a_model_that_wants_whole_texts_speaks_each_sentence_as_it_is_complete(
    gateway: RunningGateway,
) -> None:
    with opened(gateway) as ws:
        configured(ws)
        for piece in ("One is", " here. Two", " is not"):
            say(ws, "input.text", text=piece)
        first = event(ws)
        assert first["type"] == "audio.start"
        assert given_text(gateway.stages.stages["thinker"].last_request).text == "One is here."
        say(ws, "input.text", text=" yet.")
        say(ws, "input.done")
        sound, (audio, done) = until_done(ws)
    assert given_text(gateway.stages.stages["thinker"].last_request).text == "Two is not yet."
    assert sound == samples(5) * 2
    assert audio["usage"]["input_tokens"] == len("One is here.") + len("Two is not yet.")
    assert (done["total_sentences"], done["status"]) == (1, "completed")


# What is refused


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ("{", None),
        ("[]", None),
        ('{"type": "input.text"', None),
        (b"\x00\x01", None),
        ('{"type": "nothing"}', "type"),
        ("{}", "type"),
        ('{"type": "input.text", "text": 3}', "text"),
        ('{"type": "input.text"}', "text"),
        (json.dumps({**CONFIG, "voice": "nobody"}), "voice"),
        (json.dumps({**CONFIG, "model": "other"}), "model"),
        (json.dumps({**CONFIG, "response_format": "zip"}), "response_format"),
        (json.dumps({**CONFIG, "input": "text"}), "input"),
        (json.dumps({**CONFIG, "audio_encoding": "hex"}), "audio_encoding"),
        (json.dumps({**CONFIG, "word_timestamps": True}), "word_timestamps"),
        (json.dumps({**CONFIG, "language": "Klingon"}), "language"),
        (json.dumps({"type": "input.text", "text": "x" * speech_stream_events.MAX_EVENT}), None),
    ],
)
def test_an_event_that_means_nothing_is_refused_and_the_session_goes_on(
    sent: str | bytes, param: str | None, piecewise: RunningGateway
) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        ws.send(sent)
        error = event(ws)
        assert error["type"] == "error"
        assert error["message"] == error["error"]["message"]
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert error["error"]["param"] == param
        say(ws, "input.text", text="a")
        say(ws, "input.done")
        assert until_done(ws)[1][-1]["status"] == "completed"


@pytest.mark.parametrize("kind", ["input.text", "input.done", "input.cancel"])
def test_the_first_event_is_the_configuration(kind: str, piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        say(ws, kind, text="a")
        assert event(ws)["error"]["param"] == "type"
        configured(ws)
        say(ws, "input.text", text="a")
        say(ws, "input.done")
        until_done(ws)


def test_a_configuration_amid_a_text_is_refused(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="a")
        event(ws), heard(ws)
        configured(ws, voice="chelsie")
        assert event(ws)["error"]["param"] == "type"
        say(ws, "input.done")
        assert until_done(ws)[1][-1]["status"] == "completed"


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(("script", "status"), [("refuse", 400), ("break", 500)])
def test_a_failure_ends_its_answer_and_not_the_session(
    script: str, status: int, is_whole: bool, piecewise: RunningGateway
) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text=script)
        if is_whole:
            say(ws, "input.done")
        _, events = until_done(ws)
        error = next(one for one in events if one["type"] == "error")
        assert error["utterance_index"] == 0
        kind = "invalid_request_error" if status < 500 else "server_error"
        assert error["error"]["type"] == kind
        assert error["error"]["param"] == ("input" if status == 400 else None) or status == 500
        assert events[-1]["status"] == "failed"
        if not is_whole:
            say(ws, "input.text", text=" more that is dropped")
            say(ws, "input.done")
        say(ws, "input.text", text="a")
        say(ws, "input.done")
        _, events = until_done(ws)
        assert (events[-1]["utterance_index"], events[-1]["status"]) == (1, "completed")


def test_too_long_a_text_fails_its_answer(tmp_path: Path) -> None:
    short = Speech(takes_pieces=True, max_text=10)
    with running_gateway(tmp_path, OMNI, speech=short) as gateway, opened(gateway) as ws:
        configured(ws)
        say(ws, "input.text", text="12345")
        event(ws), heard(ws)
        say(ws, "input.text", text="678901")
        _, events = until_done(ws)
        assert events[0]["error"]["code"] == "text_too_long"
        assert events[-1]["status"] == "failed"
        gateway.wait_until_idle()


def test_many_events_that_mean_nothing_end_the_connection(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        for _ in range(speech_stream.MAX_ERRORS + 1):
            ws.send("nothing")
        assert code_of(ws) == POLICY


def test_many_texts_ahead_end_the_connection(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        with contextlib.suppress(ConnectionClosed):
            for _ in range(speech_stream.MAX_WAITING + 2):
                say(ws, "input.text", text="hang")
                say(ws, "input.done")
        assert code_of(ws) == POLICY


def test_a_frame_that_is_too_large_ends_the_connection(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        with contextlib.suppress(ConnectionClosed):
            ws.send("x" * (17 << 20))
        assert code_of(ws) in (1009, 1006)  # the second: a reset came before its reason


# Ends


def test_a_cancel_ends_what_is_spoken_and_what_waits(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="endless")
        assert event(ws)["type"] == "audio.start"
        say(ws, "input.done")
        say(ws, "input.text", text="later")
        say(ws, "input.cancel")
        done = [until_done(ws)[1][-1] for _ in range(2)]
        assert {one["utterance_index"]: one["status"] for one in done} == {
            0: "cancelled",
            1: "cancelled",
        }
        piecewise.wait_until_idle()
        say(ws, "input.text", text="a")
        say(ws, "input.done")
        _, events = until_done(ws)
        assert (events[-1]["utterance_index"], events[-1]["status"]) == (2, "completed")


def test_a_close_ends_the_connection_and_what_is_spoken(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="endless")
        event(ws)
        say(ws, "session.close")
        assert code_of(ws) == NORMAL


POINTS: list[list[tuple[str, dict[str, Any]]]] = [
    [],
    [("input.text", {"text": "hang"})],
    [("input.text", {"text": "a"})],
    [("input.text", {"text": "endless"}), ("input.done", {})],
    [("input.text", {"text": "hang"}), ("input.done", {}), ("input.text", {"text": "b"})],
]


@pytest.mark.parametrize("is_rude", [True, False])
@pytest.mark.parametrize("said", POINTS)
def test_a_client_that_leaves_at_any_point_leaves_nothing(
    said: list[tuple[str, dict[str, Any]]], is_rude: bool, piecewise: RunningGateway
) -> None:
    stages = piecewise.stages.stages
    num_begun = len(stages["thinker"].opened)
    with opened(piecewise) as ws:
        if said:
            configured(ws)
        for kind, fields in said:
            say(ws, kind, **fields)
        if said:
            wait_until(lambda: len(stages["thinker"].opened) > num_begun)
        if is_rude:
            ws.socket.shutdown(2)
    piecewise.wait_until_idle()
    for chunk in stages["thinker"].opened[num_begun:]:
        assert chunk.request_id in stages["thinker"].cancelled


def be_idle(gateway: RunningGateway, ws: ClientConnection) -> None:
    """Say nothing until it is too long; the server has our answer to its last ping then."""
    say(ws, "zork")
    assert event(ws)["type"] == "error"
    gateway.pass_over(IDLE_S + 1)


def test_who_says_nothing_is_let_go(
    piecewise: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_stream, "CONFIG_S", 0.2)
    with opened(piecewise) as ws:
        assert event(ws)["error"]["code"] == "idle_timeout"
        assert code_of(ws) == POLICY
    monkeypatch.undo()
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="a")
        event(ws), heard(ws)
        piecewise.pass_over(IDLE_S + 1)  # while it speaks
        say(ws, "input.done")
        until_done(ws)
        be_idle(piecewise, ws)
        assert event(ws)["error"]["code"] == "idle_timeout"
        assert code_of(ws) == POLICY


def test_a_connection_whose_open_text_has_failed_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextInput.__init__, "__defaults__", (0.2, 600.0))
    with running_gateway(tmp_path, OMNI, speech=PIECES) as gateway, opened(gateway) as ws:
        configured(ws)
        say(ws, "input.text", text="a ")
        _, events = until_done(ws)
        assert events[-1]["status"] == "failed"
        be_idle(gateway, ws)
        assert event(ws)["error"]["code"] == "idle_timeout"
        assert code_of(ws) == POLICY


def test_a_message_of_many_fragments_ends_the_connection(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        with contextlib.suppress(ConnectionClosed):
            ws.send("" for _ in range(MAX_FRAGMENTS + 1))  # none is left unread, so none resets
        assert code_of(ws) == 1009


def test_a_long_configuration_is_taken(piecewise: RunningGateway) -> None:
    """It is parsed beside the event loop; what nobody knows is told and not kept."""
    with opened(piecewise) as ws:
        configured(ws, zork="x" * (1 << 20))
        say(ws, "input.text", text="ab")
        say(ws, "input.done")
        _, events = until_done(ws)
        assert "zork" in events[0]["warning"]
        assert events[-1]["status"] == "completed"


@pytest.mark.parametrize("takes_pieces", [True, False])
def test_a_text_that_does_not_go_on_fails(
    takes_pieces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextInput.__init__, "__defaults__", (0.3, 600.0))
    speech = Speech(takes_pieces=takes_pieces)
    with running_gateway(tmp_path, OMNI, speech=speech) as gateway, opened(gateway) as ws:
        configured(ws)
        for _ in range(3):
            say(ws, "input.text", text="a ")
            time.sleep(0.15)
        _, events = until_done(ws)
        error = next(one for one in events if one["type"] == "error")
        assert error["error"]["code"] == "text_timeout"
        assert events[-1]["status"] == "failed"
        gateway.wait_until_idle()


def test_a_wait_for_text_is_not_overdue_and_one_for_a_stage_is(tmp_path: Path) -> None:
    deadlines = {"first_chunk_s": 1.0, "next_chunk_s": 1.0}
    graph = {**OMNI, "deadlines": deadlines}
    with running_gateway(tmp_path, graph, speech=PIECES) as gateway, opened(gateway) as ws:
        configured(ws)
        for text in ("a", "b"):
            say(ws, "input.text", text=text)
            time.sleep(1.3)
        say(ws, "input.done")
        assert until_done(ws)[1][-1]["status"] == "completed"
        say(ws, "input.text", text="hang")
        say(ws, "input.done")
        _, (error, done) = until_done(ws)
        assert error["error"]["code"] == "stage_timeout"
        assert done["status"] == "failed"


def test_a_stage_that_dies_fails_what_is_spoken(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, speech=PIECES) as gateway, opened(gateway) as ws:
        configured(ws)
        say(ws, "input.text", text="hang")
        wait_until(lambda: bool(gateway.stages.stages["thinker"].opened))
        gateway.do(lambda: gateway.stages.stages["talker"].die("signal 9"))
        _, (error, done) = until_done(ws)
        assert error["error"]["code"] == "stage_unavailable"
        assert done["status"] == "failed"


def test_a_client_that_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, speech=PIECES, max_unsent_bytes=50_000) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect(("127.0.0.1", port))
        with contextlib.suppress(ConnectionClosed), opened(gateway, sock=narrow, max_queue=1) as ws:
            configured(ws, speed=0.25)
            say(ws, "input.text", text="endless")
            say(ws, "input.done")
            wait_until(lambda: bool(gateway.stages.stages["code2wav"].cancelled))


# What holds for every request


def answered(gateway: RunningGateway, outcome: str, status: int | str) -> float:
    page = httpx.get(f"{gateway.url}/metrics").text
    labels = f'endpoint="{PATH}",outcome="{outcome}",status="{status}"'
    found = [line for line in page.splitlines() if f"omnistage_requests_total{{{labels}}}" in line]
    return float(found[0].split()[-1]) if found else 0.0


def test_each_answer_is_counted_named_and_followed(tmp_path: Path) -> None:
    named = {"x-request-id": "mine", "traceparent": f"00-{7:032x}-{9:016x}-01"}
    with running_gateway(tmp_path, OMNI, speech=PIECES, admin_keys=Keys(["admin"])) as gateway:
        with opened(gateway, additional_headers=named) as ws:
            assert ws.response is not None
            assert ws.response.headers["x-request-id"] == "mine"
            assert f"{7:032x}" in ws.response.headers["traceparent"]
            configured(ws)
            for text in ("a", "refuse"):
                say(ws, "input.text", text=text)
                say(ws, "input.done")
                until_done(ws)
        assert answered(gateway, "finished", 200) == 1
        assert answered(gateway, "refused", 400) == 1
        headers = {"Authorization": "Bearer admin"}
        told = httpx.get(f"{gateway.url}/admin/traces", headers=headers).json()["traces"]
        outcomes = {one["request_id"]: one["outcome"] for one in told}
        assert outcomes == {"mine.0": "finished", "mine.1": "refused"}


def refusal(url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as raised, connect(url, **options):
        pass
    response = raised.value.response
    assert response.body is not None
    error: dict[str, Any] = json.loads(response.body)["error"]
    return response.status_code, error


def test_keys_hold_and_a_page_offers_its_own_as_a_protocol(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, speech=PIECES, keys=Keys(["secret"])) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        status, error = refusal(url)
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert refusal(url, additional_headers={"Authorization": "Bearer no"})[0] == 401
        with opened(gateway, additional_headers={"Authorization": "Bearer secret"}) as ws:
            configured(ws)
        offered = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.secret")]
        with opened(gateway, subprotocols=offered) as ws:
            assert ws.subprotocol == "realtime"
        assert refusal(url, subprotocols=[Subprotocol("openai-insecure-api-key.no")])[0] == 401


def test_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    cors = Cors(("https://ours.example",))
    with running_gateway(tmp_path, OMNI, speech=PIECES, cors=cors) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        status, error = refusal(url, origin="https://other.example")
        assert (status, error["code"]) == (403, "origin_not_allowed")
        assert refusal(url, origin="http://[")[0] == 403
        for origin in ("https://ours.example", gateway.url):
            with opened(gateway, origin=origin):
                pass


def test_each_answer_counts_against_the_rate(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, speech=PIECES, requests_per_minute=2) as gateway,
        opened(gateway) as ws,
    ):
        configured(ws)
        for expected in ("completed", "completed", "failed"):
            say(ws, "input.text", text="a")
            say(ws, "input.done")
            _, events = until_done(ws)
            assert events[-1]["status"] == expected
        assert events[0]["error"]["code"] == "rate_limit_exceeded"


def test_each_answer_has_the_deadline_of_a_request(piecewise: RunningGateway) -> None:
    with opened(piecewise, additional_headers={"x-request-timeout": "0.3"}) as ws:
        configured(ws)
        time.sleep(0.4)
        say(ws, "input.text", text="hang")
        _, (error, done) = until_done(ws)
        assert (error["error"]["code"], done["status"]) == ("timeout", "failed")
    url = piecewise.url.replace("http", "ws", 1) + PATH
    assert refusal(url, additional_headers={"x-request-timeout": "soon"})[0] == 400


def test_an_answer_takes_a_place_and_gives_it_back(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, speech=PIECES, max_requests=1) as gateway,
        opened(gateway) as ws,
    ):
        url = gateway.url.replace("http", "ws", 1) + PATH
        assert refusal(url)[1]["code"] == "server_overloaded"  # as many connections, too
        configured(ws)
        say(ws, "input.text", text="a")
        event(ws)
        body = {"model": MODEL, "input": "Hello", "voice": "ethan"}
        speech = f"{gateway.url}/v1/audio/speech"
        assert httpx.post(speech, json=body).status_code == 503
        say(ws, "input.done")
        until_done(ws)
        assert httpx.post(speech, json=body).status_code == 200


def test_a_model_that_does_not_speak_says_so_at_once(tmp_path: Path) -> None:
    with running_gateway(tmp_path, TEXT_ONLY) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        status, error = refusal(url)
        assert (status, error["code"]) == (400, "unsupported_model")


def test_a_loading_stage_is_told_of(tmp_path: Path) -> None:
    loading = frozenset({"thinker"})
    with (
        running_gateway(tmp_path, OMNI, loading=loading, speech=PIECES) as gateway,
        opened(gateway) as ws,
    ):
        configured(ws)
        assert event(ws)["error"]["code"] == "loading"


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/health", "/nowhere"])
def test_other_paths_take_no_sockets(path: str, piecewise: RunningGateway) -> None:
    with (
        pytest.raises(InvalidStatus) as raised,
        connect(piecewise.url.replace("http", "ws", 1) + path),
    ):
        pass
    assert raised.value.response.status_code == 403


def test_more_text_is_not_sent_to_a_request_that_was_cancelled(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="hang")
        thinker = piecewise.stages.stages["thinker"]
        wait_until(lambda: bool(thinker.tasks))
        say(ws, "input.cancel")
        until_done(ws)
        piecewise.wait_until_idle()
        last = thinker.opened[-1].request_id
        seen = [chunk.message for chunk in thinker.seen if chunk.request_id == last]
        assert isinstance(seen[-1], Cancel)


def test_what_is_spoken_is_spoken_to_its_end_when_the_server_stops(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, speech=PIECES, stop_s=60) as gateway,
        opened(gateway) as idle,
        opened(gateway) as ws,
    ):
        configured(ws)
        say(ws, "input.text", text="a")
        assert event(ws)["type"] == "audio.start"
        gateway.stop()
        assert code_of(idle) == RESTART
        say(ws, "input.text", text="b")
        say(ws, "input.done")
        sound, events = until_done(ws)
        assert events[-1]["status"] == "completed"
        assert sound == samples(2)
        assert code_of(ws) == RESTART


def test_a_text_that_does_not_end_gets_an_error_when_the_server_stops(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, speech=PIECES, stop_s=60) as gateway,
        opened(gateway) as ws,
    ):
        configured(ws)
        say(ws, "input.text", text="a")
        assert event(ws)["type"] == "audio.start"
        gateway.stop()
        gateway.do(gateway.runtime.end_requests)
        _, events = until_done(ws)
        assert [one["type"] for one in events] == ["error", "session.done"]
        assert events[0]["error"]["code"] == "stopping"
        assert code_of(ws) == RESTART


def test_the_documented_example_prints_what_it_should(piecewise: RunningGateway) -> None:
    page = (Path(__file__).parents[4] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition(f"## WebSocket {PATH}\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program = example.replace("ws://localhost:8000", piecewise.url.replace("http", "ws", 1))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
