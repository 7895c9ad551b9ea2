"""A session's connection: how it is opened, bounded and closed."""

import contextlib
import json
import socket
import time
from typing import Any

import pytest
from support.gateway.serving import OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.realtime.client import PATH, Talk, talking
from support.realtime.talk import MANUAL, error_of
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from omnistage.server.endpoints.realtime import realtime
from omnistage.server.http.access.keys import Keys
from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.answering import answer


def test_beta_has_its_own_names(gateway: RunningGateway) -> None:
    url = gateway.url.replace("http", "ws", 1) + PATH
    headers = {"OpenAI-Beta": "realtime=v1"}
    with connect(url, additional_headers=headers, compression=None) as ws:

        def until(kind: str) -> dict[str, Any]:
            while True:
                event: dict[str, Any] = json.loads(ws.recv(timeout=600))
                kinds.append(event["type"])
                if event["type"] == kind:
                    return event

        kinds: list[str] = []
        told = until("session.created")["session"]
        assert told["modalities"] == ["audio", "text"]
        assert (told["input_audio_format"], told["turn_detection"]["type"]) == (
            "pcm16",
            "server_vad",
        )
        update = {"turn_detection": None, "output_audio_format": "g711_ulaw", "voice": "ethan"}
        ws.send(json.dumps({"type": "session.update", "session": update}))
        told = until("session.updated")["session"]
        assert (told["turn_detection"], told["output_audio_format"], told["voice"]) == (
            None,
            "g711_ulaw",
            "ethan",
        )
        item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}]}
        ws.send(json.dumps({"type": "conversation.item.create", "item": item}))
        assert until("conversation.item.created")["item"]["content"] == item["content"]
        ws.send(json.dumps({"type": "response.create", "response": {"modalities": ["text"]}}))
        response = until("response.done")["response"]
        assert response["output"][0]["content"] == [{"type": "text", "text": "Hello there"}]
        assert (response["modalities"], response["voice"]) == (["text"], "ethan")
        assert {"response.text.delta", "response.text.done"} <= set(kinds)
        ws.send(json.dumps({"type": "response.create"}))
        until("response.done")
        assert {"response.audio.delta", "response.audio_transcript.done"} <= set(kinds)
        assert not [kind for kind in kinds if "output_" in kind and "item" not in kind]
        assert "conversation.item.done" not in kinds
    gateway.wait_until_idle()


def test_a_model_without_speech_answers_in_text(tmp_path: Any) -> None:
    with running_gateway(tmp_path, TEXT_ONLY) as gateway, talking(gateway) as talk:
        assert talk.events[0]["session"]["output_modalities"] == ["text"]
        assert talk.answer()["output"][0]["content"][0]["type"] == "output_text"
        talk.say("session.update", session={"type": "realtime", "output_modalities": ["audio"]})
        assert error_of(talk)["code"] == "unsupported_model"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["realtime"], "realtime"),
        (["openai-insecure-api-key.x", "realtime", "openai-agents-sdk.1"], "realtime"),
        (["other"], None),
    ],
)
def test_the_subprotocol_is_realtime_or_none(
    gateway: RunningGateway, offered: list[str], chosen: str | None
) -> None:
    url = gateway.url.replace("http", "ws", 1) + PATH
    protocols = [Subprotocol(one) for one in offered] or None
    with connect(url, subprotocols=protocols, compression=None) as ws:
        assert ws.subprotocol == chosen


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?model=other", 404, "model_not_found"),
        ("?call_id=rtc_1", 404, "call_not_found"),
    ],
)
def test_what_cannot_be_opened_is_refused_before(
    gateway: RunningGateway, query: str, status: int, code: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(gateway.url.replace("http", "ws", 1) + PATH + query)
    assert refused.value.response.status_code == status
    body = json.loads(refused.value.response.body or b"")
    assert body["error"]["code"] == code


def test_the_key_comes_by_header_or_subprotocol(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI, keys=Keys(["sk-ann"])) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        with connect(url, additional_headers={"Authorization": "Bearer sk-ann"}):
            pass
        offered = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.sk-ann")]
        with connect(url, subprotocols=offered) as ws:
            assert ws.subprotocol == "realtime"
        for wrong in ({}, {"Authorization": "Bearer sk-bob"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(url, additional_headers=wrong)
            assert refused.value.response.status_code == 401


def test_sessions_are_bounded(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI, sessions=SessionBounds(max_sessions=1)) as gateway:
        check_bound(gateway)


def check_bound(gateway: RunningGateway) -> None:
    with talking(gateway):
        with pytest.raises(InvalidStatus) as refused:
            connect(gateway.url.replace("http", "ws", 1) + PATH)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
    wait_until(lambda: is_open(gateway))


def is_open(gateway: RunningGateway) -> bool:
    with contextlib.suppress(InvalidStatus), talking(gateway):
        return True
    return False


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\0", "invalid_json"),
        ("nonsense", "invalid_json"),
        ("[]", "invalid_json"),
        ("{}", "invalid_event"),
        ('{"type": 5}', "invalid_event"),
    ],
)
def test_a_frame_that_is_no_event_is_refused(talk: Talk, frame: str | bytes, code: str) -> None:
    talk.ws.send(frame)
    assert error_of(talk)["code"] == code


def closed(talk: Talk) -> int:
    """The code with which it is closed, after what comes before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            talk.event()
    assert talk.ws.close_code is not None
    return talk.ws.close_code


def test_errors_one_after_the_other_end_the_session(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        for number in range(2 * realtime.MAX_ERRORS - 2):
            talk.say("unknown" if number != realtime.MAX_ERRORS - 1 else "input_audio_buffer.clear")
        assert talk.answer()["status"] == "completed"
        for _ in range(realtime.MAX_ERRORS):
            talk.say("unknown")
        assert closed(talk) == 1008
        assert len(talk.told("error")) == 3 * realtime.MAX_ERRORS - 3


def test_an_event_that_is_too_long_ends_the_session(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        talk.say("input_audio_buffer.append", audio="A" * (1 << 20))
        assert closed(talk) == 1009
        assert talk.told("error")[0]["error"]["code"] == "request_too_large"


def test_a_session_expires(tmp_path: Any) -> None:
    bounds = SessionBounds(length_s=1)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        assert talk.events[0]["session"]["expires_at"] <= time.time() + 1
        assert closed(talk) == 1001
        assert talk.events[-1]["error"]["code"] == "session_expired"


def test_an_idle_session_is_closed(tmp_path: Any) -> None:
    bounds = SessionBounds(idle_s=20)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        talk.write("wait")
        talk.say("response.create")
        gateway.wait_until_waiting()
        gateway.pass_over(25)  # an answer that lasts is no idleness
        gateway.go_on()
        assert talk.until("response.done")["response"]["status"] == "completed"
        talk.update()
        gateway.pass_over(25)
        assert closed(talk) == 1001
        assert talk.events[-1]["error"]["code"] == "idle_timeout"


def num_asked(gateway: RunningGateway) -> int:
    """Count the answers that the thinker was asked for, without histories that are read ahead."""
    opened = gateway.stages.stages["thinker"].opened
    return sum(not one.message.keeps_rows for one in opened)


def test_a_client_that_reads_nothing_is_cut_off(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "SLOW_S", 0.3)
    with talking(gateway, max_queue=1) as talk:
        talk.update(**MANUAL)
        talk.write("flood")
        num_before = gateway.do(lambda: num_asked(gateway))
        talk.say("response.create")
        wait_until(lambda: gateway.do(lambda: num_asked(gateway)) > num_before)
        gateway.wait_until_idle()


def test_a_client_that_leaves_frees_its_stages(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        talk.write("endless")
        talk.say("response.create")
        talk.until("response.output_audio.delta")
        talk.ws.socket.close()
    gateway.wait_until_idle()


def takes_connections(gateway: RunningGateway) -> bool:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=600):
        return True
    return False


def test_a_server_that_stops_ends_the_answer_first(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI, stop_s=60) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        with connect(url, compression=None) as ws:
            talk = Talk(ws)
            talk.write("wait")
            talk.say("response.create")
            gateway.wait_until_waiting()
            gateway.stop()
            wait_until(lambda: not takes_connections(gateway))
            gateway.go_on()
            assert closed(talk) == 1012
            assert talk.events[-1]["response"]["status"] == "completed"
