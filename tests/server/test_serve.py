"""A server of real processes over shared memory, told to stop: it leaves nothing behind."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.gateway import MODEL

SCRIPT = Path(__file__).parents[1] / "support" / "fake_server.py"
TEXT = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}


class Served:
    """A server process that is ready."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT)], stdout=output, stderr=subprocess.STDOUT
            )
        self.url = self._wait_for(r"listening on (\S+)")
        self._wait_for(r"stage code2wav (ready)")
        self._wait_for(r"stage talker (ready)")
        self._wait_for(r"stage thinker (ready)")
        self.processes = psutil.Process(self.process.pid).children(recursive=True)
        self.folders = set(Path("/dev/shm").glob(f"omnistage-{self.process.pid}-*"))

    def _wait_for(self, pattern: str) -> str:
        for _ in range(1000):
            found = re.search(pattern, self.log.read_text())
            if found:
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path / "log")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(number: signal.Signals, served: Served) -> None:
    assert len(served.processes) == 3
    assert len(served.folders) == 1
    assert httpx.post(f"{served.url}/v1/chat/completions", json=TEXT).status_code == 200
    served.process.send_signal(number)
    assert served.process.wait(10) == 0, served.log.read_text()
    assert not any(process.is_running() for process in served.processes)
    assert not any(folder.exists() for folder in served.folders)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health")
    log = served.log.read_text()
    assert "Traceback" not in log
    assert "all stages have ended" in log


def test_a_killed_stage_fails_what_needs_it_within_a_second(served: Served) -> None:
    (victim,) = [stage for stage in served.processes if "talker" in stage.cmdline()]
    speech = {**TEXT, "modalities": ["text", "audio"], "audio": {"voice": "ethan"}, "stream": True}
    speech["messages"] = [{"role": "user", "content": "hang"}]
    url = f"{served.url}/v1/chat/completions"
    with httpx.Client(timeout=5) as client:
        victim.kill()
        started = time.monotonic()
        while client.get(f"{served.url}/ready").status_code != 503:
            assert time.monotonic() - started < 1
        assert client.post(url, json=speech).status_code == 503
        assert client.post(url, json=TEXT).status_code == 200


def test_a_port_that_is_taken_is_told_before_anything_loads(served: Served) -> None:
    port = int(served.url.rpartition(":")[2])
    code = (
        "import sys; from omnistage.server.serve import listen\n"
        f"try: listen('127.0.0.1', {port})\n"
        "except OSError as error: sys.exit(str(error))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "in use" in ended.stderr
