"""A text spoken while it comes: what is refused, cancelled or cut off."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.gateway.speech_stream import (
    CONFIG,
    PIECES,
    code_of,
    configured,
    event,
    heard,
    opened,
    say,
    until_done,
)
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from omnistage.server.endpoints.audio import speech_stream, speech_stream_events
from omnistage.server.endpoints.audio.speech_stream import IDLE_S
from omnistage.server.http.protocol.socket_life import NORMAL, POLICY
from omnistage.server.http.protocol.socket_protocol import MAX_FRAGMENTS
from omnistage.server.runtime.inputs import TextInput
from omnistage.stages.messages.to_gateway import Speech


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
