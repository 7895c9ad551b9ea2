"""A text spoken while it comes: limits and keys of the server, its stages, its end."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.serving import MODEL, OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.gateway.speech_stream import (
    PATH,
    PIECES,
    code_of,
    configured,
    event,
    opened,
    samples,
    say,
    until_done,
)
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from omnistage.server.http.access.cors import Cors
from omnistage.server.http.access.keys import Keys
from omnistage.server.http.protocol.socket_life import RESTART
from omnistage.server.runtime.inputs import TextInput
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Cancel


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
