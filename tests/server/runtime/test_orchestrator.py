"""Cancels, back-pressure, deaths of stages: what happens to requests when something else does."""

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fake_stages import FakeGraph
from support.gateway import (
    MODEL,
    OMNI,
    RunningGateway,
    SharedConnector,
    outputs_of,
    running_gateway,
)
from support.waiting import wait_until

from omnistage.server.errors import ApiError
from omnistage.server.runtime.fleet import StageDied
from omnistage.server.runtime.orchestrator import Orchestrator
from omnistage.server.runtime.request import Request, TextOutput
from omnistage.stage_configs.graph import StageGraph

URL = "/v1/chat/completions"
NUMBERS = itertools.count()


def spoken(script: str, **more: Any) -> dict[str, Any]:
    audio = {"voice": "ethan", "format": "pcm16"}
    messages = [{"role": "user", "content": script}]
    wanted = {"modalities": ["text", "audio"], "audio": audio}
    return {"model": MODEL, "messages": messages, **wanted, **more}


def settled_after_s(gateway: RunningGateway, within_s: float = 1.0) -> float:
    started = time.monotonic()
    wait_until(lambda: not gateway.stages.running, within_s)
    return time.monotonic() - started


# Over HTTP


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_cancels_on_every_stage(stream: bool, gateway: RunningGateway) -> None:
    stages = gateway.stages.stages
    before = {name: len(stage.cancelled) for name, stage in stages.items()}
    with httpx.Client(base_url=gateway.url, timeout=0.3) as client:
        if stream:
            with client.stream("POST", URL, json=spoken("endless", stream=True)) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(URL, json=spoken("endless"))
    assert settled_after_s(gateway) < 0.5
    for name, stage in stages.items():
        assert len(stage.cancelled) == before[name] + 1


def test_hanging_up_while_nothing_has_come_cancels_too(gateway: RunningGateway) -> None:
    with (
        httpx.Client(base_url=gateway.url, timeout=0.3) as client,
        pytest.raises(httpx.ReadTimeout),
    ):
        client.post(URL, json=spoken("hang", stream=True))
    assert settled_after_s(gateway) < 0.5


def test_a_silent_stream_is_kept_alive(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, keep_alive_s=0.05) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
        client.stream("POST", URL, json=spoken("hang", stream=True)) as response,
    ):
        lines = response.iter_lines()
        assert [next(lines), next(lines), next(lines)] == [": keep-alive", "", ": keep-alive"]


TEXT = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}


def ended_by_error(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The error event that ends a stream."""
    with client.stream("POST", URL, json={**body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    error: dict[str, Any] = json.loads(lines[-2].removeprefix("data: "))["error"]
    return error


def test_a_stage_that_dies_fails_its_requests_and_starts_again_alone(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        thinker, code2wav = (gateway.stages.stages[name] for name in ("thinker", "code2wav"))
        killer = threading.Timer(0.2, gateway.do, [lambda: code2wav.die("signal SIGKILL")])
        killer.start()
        started = time.monotonic()
        error = ended_by_error(client, spoken("crash"))
        killer.join()
        assert time.monotonic() - started < 1
        assert error["code"] == "stage_unavailable"
        assert error["type"] == "server_error"
        assert "code2wav" in error["message"]
        assert "SIGKILL" in error["message"]
        assert client.post(URL, json=TEXT).status_code == 200
        wait_until(lambda: client.get("/ready").status_code == 200)
        health = client.get("/health").json()["stages"]
        assert (health["code2wav"]["generation"], health["code2wav"]["restarts"]) == (2, 1)
        assert (health["thinker"]["generation"], health["thinker"]["restarts"]) == (1, 0)
        assert gateway.stages.stages["thinker"] is thinker
        assert client.post(URL, json=spoken("words")).status_code == 200
        assert settled_after_s(gateway) < 1


def test_a_crash_loop_backs_off_and_is_not_ready(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        gateway.stages.is_loading = {"code2wav"}  # it will not come up again
        for generation in (1, 2):
            wait_until(lambda count=generation: len(gateway.stages.launched) == 2 + count)  # type: ignore[misc]
            code2wav = gateway.stages.stages["code2wav"]
            gateway.do(lambda stage=code2wav: stage.die("exit code 1"))  # type: ignore[misc]
        time.sleep(0.2)  # the second restart waits
        assert len(gateway.stages.launched) == 4
        assert client.get("/ready").status_code == 503
        refused = client.post(URL, json=spoken("words"))
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        assert "exit code 1" in refused.json()["error"]["message"]
        assert client.post(URL, json=TEXT).status_code == 200


def test_a_stage_that_hangs_is_ended_and_started_again(tmp_path: Path) -> None:
    graph = {**OMNI, "deadlines": {"hang_s": 1.1}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=10) as client,
    ):
        code2wav = gateway.stages.stages["code2wav"]
        killer = threading.Timer(0.2, gateway.do, [code2wav.freeze])
        killer.start()
        started = time.monotonic()
        error = ended_by_error(client, spoken("crash"))
        killer.join()
        assert 1.1 < time.monotonic() - started < 2.5
        assert "code2wav" in error["message"]
        assert "no sign of life for 1.1 s" in error["message"]
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post(URL, json=spoken("words")).status_code == 200


def test_a_stage_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    graph = {**OMNI, "deadlines": {"start_s": 0.3}}
    with (
        running_gateway(tmp_path, graph, frozenset({"talker"})) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        wait_until(lambda: client.get("/health").json()["stages"]["talker"]["state"] == "dead")
        refused = client.post(URL, json=spoken("words")).json()["error"]["message"]
        assert "talker" in refused
        assert "not ready for 0.3 s" in refused


@pytest.mark.parametrize(
    ("script", "deadlines"),
    [
        ("hang", {"first_chunk_s": 0.3}),
        ("crash", {"first_chunk_s": 0.3}),
        ("stall", {"next_chunk_s": 0.3}),
    ],
)
def test_an_output_that_does_not_come_in_time_fails_its_request(
    script: str, deadlines: dict[str, float], tmp_path: Path
) -> None:
    with (
        running_gateway(tmp_path, {**OMNI, "deadlines": deadlines}) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        started = time.monotonic()
        refused = client.post(URL, json=spoken(script))
        assert 0.3 <= time.monotonic() - started < 2
        assert refused.status_code == 504
        error = refused.json()["error"]
        assert error["code"] == "stage_timeout"
        assert ("thinker" if script == "hang" else "code2wav") in error["message"]
        assert settled_after_s(gateway) < 1


def test_a_stage_that_is_late_and_does_not_get_on_starts_again_and_health_says_why(
    tmp_path: Path,
) -> None:
    graph = {**OMNI, "deadlines": {"first_chunk_s": 0.5}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        gateway.stages.stages["thinker"].progress = itertools.repeat(7)
        gateway.stages.stages["talker"].progress = itertools.count()
        assert client.post(URL, json=spoken("hang")).status_code == 504
        overdue_at = time.monotonic()
        wait_until(lambda: client.get("/health").json()["stages"]["thinker"]["generation"] == 2)
        assert 0.4 < time.monotonic() - overdue_at < 2.5
        health = client.get("/health").json()["stages"]
        assert health["thinker"]["ended_by"] == "no progress for 0.5 s after a request was overdue"
        assert {name: stage["generation"] for name, stage in health.items()} == {
            "thinker": 2,
            "talker": 1,
            "code2wav": 1,
        }
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post(URL, json=spoken("words")).status_code == 200


@pytest.mark.parametrize("progress", [None, itertools.count()], ids=["idle", "gets on"])
def test_a_stage_that_is_late_and_idle_or_gets_on_stays(
    progress: Iterator[int] | None, tmp_path: Path
) -> None:
    graph = {**OMNI, "deadlines": {"first_chunk_s": 0.5}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        gateway.stages.stages["thinker"].progress = progress
        assert client.post(URL, json=spoken("hang")).status_code == 504
        time.sleep(2)  # four of its deadlines
        health = client.get("/health").json()["stages"]["thinker"]
        assert (health["state"], health["generation"], health["ended_by"]) == ("ready", 1, "")


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, max_unsent_bytes=1 << 18) as gateway,
        socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as deaf,
        httpx.Client(base_url=gateway.url, timeout=5) as client,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({**TEXT, "messages": [{"role": "user", "content": "flood"}]})
        body = body[:-1] + ', "stream": true}'
        head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        thinker = gateway.stages.stages["thinker"]
        wait_until(lambda: len(thinker.cancelled) == 1)
        assert settled_after_s(gateway) < 1
        assert client.post(URL, json=TEXT).status_code == 200


# Without HTTP


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Orchestrator, FakeGraph]]:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate(OMNI)
    async with Orchestrator(graph, tmp_path, stages.launch, shared) as orchestrator:
        await orchestrator.fleet.loaded()
        yield orchestrator, stages


def request_of(script: str, *outputs: str) -> Request:
    body = {"messages": [{"role": "user", "content": script}]}
    return Request(id=f"{script}-{next(NUMBERS)}", outputs=outputs, body=body)


async def test_outputs_end_when_each_kind_has_ended(
    running: tuple[Orchestrator, FakeGraph],
) -> None:
    orchestrator, stages = running
    outputs = [
        output async for output in outputs_of(orchestrator, request_of("words", "text", "audio"))
    ]
    assert sum(output.last for output in outputs) == 2
    assert not any(stage.cancelled for stage in stages.stages.values())


async def test_a_slow_client_holds_its_own_request_only(
    running: tuple[Orchestrator, FakeGraph],
) -> None:
    orchestrator, stages = running
    thinker = stages.stages["thinker"]
    async with aclosing(outputs_of(orchestrator, request_of("endless", "text"))) as slow:
        await anext(slow)
        await asyncio.sleep(0.1)
        held = thinker.num_sent
        await asyncio.sleep(0.05)
        assert thinker.num_sent == held < 20
        outputs = [output async for output in outputs_of(orchestrator, request_of("words", "text"))]
        assert isinstance(outputs[-1], TextOutput)
        assert outputs[-1].last
        held = thinker.num_sent
        for _ in range(10):
            await anext(slow)
        await asyncio.sleep(0.05)
        assert thinker.num_sent > held
    await asyncio.sleep(0.05)
    assert len(thinker.cancelled) == 1


async def test_a_stage_is_not_overdue_for_the_time_that_its_client_took(tmp_path: Path) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate({**OMNI, "deadlines": {"next_chunk_s": 0.2}})
    async with Orchestrator(graph, tmp_path, stages.launch, shared) as orchestrator:
        await orchestrator.fleet.loaded()
        request = request_of("endless", "text", "audio")
        async with aclosing(outputs_of(orchestrator, request)) as slow:
            for _ in range(2):
                await anext(slow)
                await asyncio.sleep(0.5)
            for _ in range(100):
                await anext(slow)


async def test_many_cancels_leak_no_credit(running: tuple[Orchestrator, FakeGraph]) -> None:
    orchestrator, stages = running
    for _ in range(200):
        async with aclosing(
            outputs_of(orchestrator, request_of("endless", "text", "audio"))
        ) as outputs:
            await anext(outputs)
    await asyncio.sleep(0.05)
    assert not stages.running


async def test_a_stage_that_dies_while_loading_is_told(tmp_path: Path) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    stages.is_loading = {"talker"}
    graph = StageGraph.model_validate(OMNI)
    async with Orchestrator(graph, tmp_path, stages.launch, shared) as orchestrator:
        stages.stages["talker"].die("exit code 3")
        with pytest.raises(StageDied, match=r"talker.*exit code 3"):
            await orchestrator.fleet.loaded()
        with pytest.raises(ApiError):
            await anext(outputs_of(orchestrator, request_of("words", "text", "audio")))
