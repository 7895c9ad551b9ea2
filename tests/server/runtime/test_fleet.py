"""Stages that die, hang, are late or never get ready, and what becomes of their requests."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.chats import TEXT, URL, settle, spoken
from support.gateway.serving import OMNI, running_gateway
from support.waiting import wait_until


def ended_by_error(
    client: httpx.Client, body: dict[str, Any], strike: Callable[[], object]
) -> dict[str, Any]:
    """The error event that ends a stream after whose first event something is done."""
    with client.stream("POST", URL, json={**body, "stream": True}) as response:
        coming = (line for line in response.iter_lines() if line)
        lines = [next(coming)]
        strike()
        lines += coming
    assert lines[-1] == "data: [DONE]"
    error: dict[str, Any] = json.loads(lines[-2].removeprefix("data: "))["error"]
    return error


def test_a_stage_that_dies_fails_its_requests_and_starts_again_alone(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        thinker, code2wav = (gateway.stages.stages[name] for name in ("thinker", "code2wav"))
        error = ended_by_error(
            client, spoken("crash"), lambda: gateway.do(lambda: code2wav.die("signal SIGKILL"))
        )
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
        settle(gateway)


def test_a_crash_loop_backs_off_and_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.runtime.processes.supervisor.FIRST_DELAY_S", 60.0)
    with (
        running_gateway(tmp_path, OMNI) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
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
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        code2wav = gateway.stages.stages["code2wav"]
        link = gateway.runtime.fleet.stages["code2wav"]
        started, before = time.monotonic(), link.record.alive_at

        def freeze() -> None:
            wait_until(lambda: link.record.alive_at > before)  # the last sign is since `started`
            gateway.do(code2wav.freeze)

        error = ended_by_error(client, spoken("crash"), freeze)
        assert time.monotonic() - started > 1.1
        assert "code2wav" in error["message"]
        assert "no sign of life for 1.1 s" in error["message"]
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post(URL, json=spoken("words")).status_code == 200


def test_a_stage_that_compiles_is_given_its_time_and_so_are_its_requests(tmp_path: Path) -> None:
    graph = {**OMNI, "deadlines": {"hang_s": 2.5, "first_chunk_s": 0.5}}

    def is_compiling() -> bool:
        return bool(client.get("/health").json()["stages"]["thinker"]["compiling"])

    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        thinker = gateway.stages.stages["thinker"]
        assert not is_compiling()
        thinker.compiles = True
        wait_until(is_compiling)
        has_ended = threading.Event()

        def end() -> None:
            has_ended.set()
            thinker.compiles = False

        ends = threading.Timer(3.0, end)
        ends.start()
        assert client.post(URL, json=spoken("hang")).status_code == 504  # it never answers
        assert has_ended.is_set()  # and has its time once it compiles no more
        ends.join()
        wait_until(lambda: not is_compiling())
        assert client.get("/health").json()["stages"]["thinker"]["generation"] == 1
        wait_until(lambda: client.post(URL, json=spoken("words")).status_code == 200)


def test_a_stage_that_compiles_without_an_end_is_ended(tmp_path: Path) -> None:
    graph = {**OMNI, "deadlines": {"compile_s": 0.8, "hang_s": 1.1}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        gateway.stages.stages["thinker"].compiles = True
        refused = client.post(URL, json=spoken("hang")).json()["error"]["message"]
        assert "no answer, as it compiled, for 0.8 s" in refused
        wait_until(lambda: client.get("/ready").status_code == 200)


def test_a_stage_that_falls_silent_while_it_compiles_hangs(tmp_path: Path) -> None:
    graph = {**OMNI, "deadlines": {"hang_s": 1.1}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        thinker = gateway.stages.stages["thinker"]
        thinker.compiles = True
        wait_until(lambda: client.get("/health").json()["stages"]["thinker"]["compiling"])
        gateway.do(thinker.freeze)
        refused = client.post(URL, json=spoken("hang")).json()["error"]["message"]
        assert "no sign of life for 1.1 s" in refused


def test_a_stage_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    graph = {**OMNI, "deadlines": {"start_s": 0.3}}
    with (
        running_gateway(tmp_path, graph, frozenset({"talker"})) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        wait_until(lambda: client.get("/health").json()["stages"]["talker"]["state"] == "dead")
        refused = client.post(URL, json=spoken("words")).json()["error"]["message"]
        assert "talker" in refused
        assert "not ready for 0.3 s" in refused


def test_a_stage_that_is_late_and_does_not_get_on_starts_again_and_health_says_why(
    tmp_path: Path,
) -> None:
    graph = {**OMNI, "deadlines": {"first_chunk_s": 0.5}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        gateway.stages.stages["thinker"].progress = itertools.repeat(7)
        gateway.stages.stages["talker"].progress = itertools.count()
        assert client.post(URL, json=spoken("hang")).status_code == 504
        overdue_at = time.monotonic()
        wait_until(lambda: client.get("/health").json()["stages"]["thinker"]["generation"] == 2)
        assert time.monotonic() - overdue_at > 0.4
        health = client.get("/health").json()["stages"]
        assert health["thinker"]["ended_by"] == "no progress for 0.5 s after a request was overdue"
        assert {name: stage["generation"] for name, stage in health.items()} == {
            "thinker": 2,
            "talker": 1,
            "code2wav": 1,
        }
        wait_until(lambda: client.get("/ready").status_code == 200)
        wait_until(lambda: client.post(URL, json=spoken("words")).status_code == 200)


@pytest.mark.parametrize("progress", [None, itertools.count()], ids=["idle", "gets on"])
def test_a_stage_that_is_late_and_idle_or_gets_on_stays(
    progress: Iterator[int] | None, tmp_path: Path
) -> None:
    graph = {**OMNI, "deadlines": {"first_chunk_s": 0.5}}
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        gateway.stages.stages["thinker"].progress = progress
        assert client.post(URL, json=spoken("hang")).status_code == 504
        time.sleep(2)  # four of its deadlines
        health = client.get("/health").json()["stages"]["thinker"]
        assert (health["state"], health["generation"], health["ended_by"]) == ("ready", 1, "")
