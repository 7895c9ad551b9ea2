"""A server of real processes over shared memory, told to stop: it leaves nothing behind."""

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.certificates import certificate, trusting
from support.fakes.mps import FakeMps
from support.fakes.served import Served
from support.gateway.serving import MODEL
from support.waiting import wait_until

from omnistage.connectors.sweep import sweep
from omnistage.server.http.protocol.open_files import MAX_OPEN_FILES
from omnistage.server.serve import listen

TEXT = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}


def are_gone(processes: list[str]) -> bool:
    return all(is_gone(Path(f"/proc/{process}/stat")) for process in processes)


def is_gone(state: Path) -> bool:
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def environment(held: Path) -> dict[str, str]:
    """What a test adds to the server's."""
    return {"FAKE_SERVER_HELD": str(held)}


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """The file that no stage starts beside."""
    return tmp_path / "held"


@pytest.fixture
def served(tmp_path: Path, environment: dict[str, str]) -> Iterator[Served]:
    running = Served(tmp_path / "log", **environment)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.wait(600)


def test_sigterm_ends_everything(served: Served) -> None:
    assert len(served.stages) == 3
    assert len(served.folders) == 1
    assert httpx.post(f"{served.url}/v1/chat/completions", json=TEXT).status_code == 200
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(600) == 0, served.log.read_text()
    assert are_gone(served.stages)
    assert not any(folder.exists() for folder in served.folders)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health")
    log = served.log.read_text()
    assert "Traceback" not in log
    assert "all stages have ended" in log


@pytest.mark.parametrize("environment", [{"FAKE_SERVER_LOG": "json"}])
def test_its_log_has_one_line_a_request_and_none_for_probes(served: Served) -> None:
    headers = {"x-request-id": "mine"}
    for path in ("/health", "/ready", "/metrics"):
        assert httpx.get(f"{served.url}{path}", headers=headers).status_code == 200
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=TEXT, headers=headers)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(600) == 0
    said = [json.loads(line) for line in served.log.read_text().splitlines()]
    (line,) = [one for one in said if one.get("request_id") or "HTTP/1.1" in one["message"]]
    assert (line["request_id"], line["ids"]) == ("mine", [answer.json()["id"]])
    assert (line["method"], line["status"], line["outcome"]) == ("POST", 200, "finished")
    assert line["seconds"] >= line["ttft_s"] > 0


def test_a_stream_that_does_not_end_gets_an_error_when_the_server_stops(served: Served) -> None:
    body = {**TEXT, "messages": [{"role": "user", "content": "endless"}], "stream": True}
    url = f"{served.url}/v1/chat/completions"
    with httpx.Client(timeout=600) as client, client.stream("POST", url, json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        served.process.send_signal(signal.SIGINT)
        *_, error, done = lines
    assert "shutting down" in error
    assert done == "data: [DONE]"
    assert served.process.wait(600) == 0
    assert are_gone(served.stages)
    assert "Traceback" not in served.log.read_text()


@pytest.mark.parametrize("environment", [{"FAKE_SERVER_DRAIN_S": "600"}])
def test_a_server_told_to_stop_is_not_ready_and_refuses_while_an_answer_goes_on(
    served: Served,
) -> None:
    body = {**TEXT, "messages": [{"role": "user", "content": "endless"}], "stream": True}
    url = f"{served.url}/v1/chat/completions"
    with httpx.Client(timeout=600) as client, client.stream("POST", url, json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        assert httpx.get(f"{served.url}/ready").status_code == 200
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{served.url}/ready").status_code == 503)
        assert httpx.get(f"{served.url}/ready").json()["error"]["code"] == "stopping"
        refused = httpx.post(url, json=TEXT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
        assert refused.headers["retry-after"]
        assert httpx.get(f"{served.url}/health").status_code == 200
        assert "error" not in next(lines)
    assert served.process.wait(600) == 0  # nobody is left who waits for an answer


@pytest.mark.parametrize(
    "environment", [{"FAKE_SERVER_DRAIN_S": "3", "FAKE_SERVER_HANG_UP_S": "1"}]
)
def test_an_answer_has_all_of_drain_s_and_the_server_ends_soon_after_it(served: Served) -> None:
    body = {**TEXT, "messages": [{"role": "user", "content": "endless"}], "stream": True}
    url = f"{served.url}/v1/chat/completions"
    with httpx.Client(timeout=600) as client, client.stream("POST", url, json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        told_at = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        *_, error, done = lines
        assert time.monotonic() - told_at >= 3
    assert "shutting down" in error
    assert done == "data: [DONE]"
    assert served.process.wait(600) == 0


def test_a_killed_stage_fails_what_needs_it_until_it_is_back(served: Served, held: Path) -> None:
    (victim,) = [
        int(stage)
        for stage in served.stages
        if "talker" in Path(f"/proc/{stage}/cmdline").read_text().split("\0")
    ]
    speech = {**TEXT, "modalities": ["text", "audio"], "audio": {"voice": "ethan"}, "stream": True}
    speech["messages"] = [{"role": "user", "content": "hang"}]
    url = f"{served.url}/v1/chat/completions"
    held.touch()
    with httpx.Client(timeout=600) as client:
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: client.get(f"{served.url}/ready").status_code == 503)
        assert client.post(url, json=speech).status_code == 503
        assert client.post(url, json=TEXT).status_code == 200
        held.unlink()
        wait_until(lambda: client.get(f"{served.url}/ready").status_code == 200)


def test_a_killed_server_takes_its_stages_along(served: Served) -> None:
    served.process.kill()
    served.process.wait()
    wait_until(lambda: are_gone(served.stages))
    (abandoned,) = served.folders
    sweep()
    assert not abandoned.exists()


def test_a_server_may_open_more_files_than_its_shell_began_with(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        served = Served(tmp_path / "log")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        for process in (served.process.pid, *map(int, served.stages)):
            allowed, _ = resource.prlimit(process, resource.RLIMIT_NOFILE)
            assert allowed == min(hard, MAX_OPEN_FILES)
    finally:
        served.process.terminate()
        served.process.wait(600)


def test_a_server_whose_open_files_are_all_taken_says_so_in_a_line_and_goes_on(
    served: Served,
) -> None:
    process = served.process.pid
    place = httpx.URL(served.url)
    _, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    num_open = len(list(Path(f"/proc/{process}/fd").iterdir()))
    resource.prlimit(process, resource.RLIMIT_NOFILE, (num_open + 20, hard))
    idle = [socket.create_connection((place.host, place.port)) for _ in range(200)]
    wait_until(lambda: "no more connections can be accepted" in served.log.read_text())
    for connection in idle:
        connection.close()
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=TEXT, timeout=600)
    assert answer.status_code == 200
    assert "Traceback" not in served.log.read_text()


def test_mps_ends_with_the_server_and_with_the_next_one_if_it_was_killed(tmp_path: Path) -> None:
    mps = FakeMps(tmp_path / "bin")
    gpu = {"CUDA_VISIBLE_DEVICES": "0", "FAKE_SERVER_MPS": "auto", "PATH": mps.path}
    killed = Served(tmp_path / "killed.log", **gpu)
    (folder,) = killed.folders
    for stage in killed.stages:
        environment = Path(f"/proc/{stage}/environ").read_text().split("\0")
        assert f"CUDA_MPS_PIPE_DIRECTORY={folder}/mps/pipe" in environment
    killed.process.kill()
    killed.process.wait()
    (abandoned,) = mps.daemons()
    after = Served(tmp_path / "after.log", **gpu)
    assert abandoned not in mps.daemons()
    assert len(mps.daemons()) == 1
    after.process.terminate()
    assert after.process.wait(600) == 0, after.log.read_text()
    assert mps.daemons() == []


def test_a_port_that_is_taken_is_told_before_anything_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_server_with_a_certificate_speaks_tls_and_ends_like_any_other(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    served = Served(tmp_path / "log", FAKE_SERVER_TLS=str(tmp_path))
    assert served.url.startswith("https://127.0.0.1:")
    endless = {**TEXT, "messages": [{"role": "user", "content": "endless"}], "stream": True}
    url = f"{served.url}/v1/chat/completions"
    with httpx.Client(timeout=600, verify=trusting(tls)) as client:
        assert client.post(url, json=TEXT).status_code == 200
        with client.stream("POST", url, json=endless) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            *_, error, done = lines
    assert "shutting down" in error
    assert done == "data: [DONE]"
    assert served.process.wait(600) == 0, served.log.read_text()
    assert "Traceback" not in served.log.read_text()


def test_an_event_does_not_wait_for_the_acknowledgement_of_the_one_before() -> None:
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
