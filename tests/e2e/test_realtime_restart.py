"""Sessions whose stages are killed, and whose server stops: the history stays."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chaos import PROMPT_S, chaos_graph, victims
from support.realtime import PATH, Talk
from support.server import STOP_S, TinyServer, running_server
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

pytestmark = pytest.mark.engine

READY_S = 120.0
STAGES = ("thinker", "talker", "code2wav")


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("killed")
    options = ("--model", str(tiny_checkpoint))
    with running_server(str(chaos_graph(folder)), folder / "log", *options) as running:
        yield running


def session(server: TinyServer) -> Any:
    url = server.url.replace("http", "ws", 1) + PATH
    return connect(url, open_timeout=10, close_timeout=5, compression=None, max_size=None)


def begun(talk: Talk, server: TinyServer) -> None:
    """A turn by hand, which is answered."""
    talk.until("session.created")
    talk.update(audio={"input": {"turn_detection": None}}, temperature=0)
    talk.write("Hello")
    assert talk.answer(max_output_tokens=8)["status"] in ("completed", "incomplete")
    wait_until(lambda: not server.held(), within_s=10)


def kill(server: TinyServer, stage: str) -> None:
    """Kill -9 of a stage's process."""
    (pid,) = [one.pid for one in victims(server) if (one.stage, one.role) == (stage, "worker")]
    os.kill(pid, signal.SIGKILL)


def check_goes_on(talk: Talk, server: TinyServer, num_tokens: int) -> None:
    """The next turn is answered once all stages are there, and its prompt has the history."""
    wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200, within_s=READY_S)
    talk.write("And now?")
    response = talk.answer(max_output_tokens=8)
    assert response["status"] in ("completed", "incomplete"), response
    assert response["usage"]["input_tokens"] > num_tokens
    talk.order.end()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_killed_in_an_answer_fails_it_and_the_session_goes_on(
    server: TinyServer, stage: str
) -> None:
    with session(server) as ws:
        talk = Talk(ws)
        begun(talk, server)
        num_tokens = talk.events[-1]["response"]["usage"]["input_tokens"]
        for _ in range(8):  # some answers are short
            talk.write("Tell me of the sea.")
            talk.say("response.create")
            talk.until("response.output_audio.delta")
            kill(server, stage)
            killed_at = time.monotonic()
            response = talk.until("response.done")["response"]
            took_s = time.monotonic() - killed_at
            if response["status"] == "failed":
                break
            check_goes_on(talk, server, num_tokens)
        assert response["status_details"]["error"]["code"]
        assert response["output"][0]["status"] == "incomplete"
        assert took_s < PROMPT_S
        check_goes_on(talk, server, num_tokens)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_killed_between_answers_leaves_the_session(server: TinyServer, stage: str) -> None:
    with session(server) as ws:
        talk = Talk(ws)
        begun(talk, server)
        num_tokens = talk.events[-1]["response"]["usage"]["input_tokens"]
        generation = server.generations()[stage]
        kill(server, stage)
        talk.write("Are you there?")
        asked_at = time.monotonic()
        response = talk.answer()  # while the stage loads, or before its death is known
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"]
        assert time.monotonic() - asked_at < PROMPT_S
        wait_until(lambda: server.generations()[stage] == generation + 1, within_s=READY_S)
        check_goes_on(talk, server, num_tokens)


def test_a_server_that_stops_finishes_the_answer_and_closes_with_1012(server: TinyServer) -> None:
    """The last test of this file: it ends the file's server."""
    with session(server) as ws:
        talk = Talk(ws)
        begun(talk, server)
        talk.write("Tell me of the sea.")
        talk.say("response.create")
        talk.until("response.output_audio.delta")
        server.is_killed = True
        server.process.terminate()
        response = talk.until("response.done")["response"]
        assert response["status"] == "completed"
        with pytest.raises(ConnectionClosed):
            talk.event(STOP_S)
        assert ws.close_code == 1012
        talk.order.end()
    assert server.process.wait(STOP_S) == 0
