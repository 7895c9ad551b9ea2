"""Two servers of a tiny model behind HAProxy and docker/haproxy.cfg, with kills (make balancer).

haproxy must be installed. A stage is killed under load, then a whole server, then one server is
told to stop. At most the answers that were in flight may fail. `--fake`: servers whose stages have
no model, in a minute.
"""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from support.fakes import server as fake_server
from support.gateway.serving import MODEL as FAKE
from support.ports import free_port
from under_load import (
    NUM_CLIENTS,
    alive,
    ask,
    below,
    check,
    console,
    is_ready,
    stages_of,
    under_load,
    wait_for,
)

CONFIGURATION = Path(__file__).parents[1] / "docker" / "haproxy.cfg"
SESSION = "x-session-id"
NUM_SERVERS = 2
SECONDS = 12.0


class Servers:
    """Servers of one model at ports of their own, each restarted by `start`."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model = model
        self._folder = folder
        self._ports = [free_port() for _ in range(NUM_SERVERS)]
        self._front = free_port()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.url = f"http://127.0.0.1:{self._front}"
        self.addresses = [f"http://127.0.0.1:{port}" for port in self._ports]

    def start(self, number: int) -> None:
        port = str(self._ports[number])
        program = [sys.executable, "-m", "omnistage.server.cli", "serve", self.model]
        command = [*program, "--port", port]
        if self.model == FAKE:
            command = [sys.executable, str(fake_server.__file__)]
        with (self._folder / f"server{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "FAKE_SERVER_PORT": port},
            )

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    def restart(self, number: int) -> None:
        self._processes[number].wait(60)
        self.start(number)
        console.print(f"both again after {wait_for('both', self.all_ready):.0f} s more")

    def all_ready(self) -> bool:
        return all(map(is_ready, self.addresses))

    def configuration(self) -> Path:
        """Writes docker/haproxy.cfg with the ports of these servers."""
        text = CONFIGURATION.read_text()
        for number, port in enumerate(self._ports):
            text, count = re.subn(
                rf"(server server{number} 127\.0\.0\.1):\d+", rf"\g<1>:{port}", text
            )
            assert count == 1
        text, count = re.subn(r"(bind 127\.0\.0\.1):\d+", rf"\g<1>:{self._front}", text)
        assert count == 1
        path = self._folder / "haproxy.cfg"
        path.write_text(text)
        return path

    def stop(self) -> list[int]:
        """Ends them and returns what is left of them."""
        pids = [pid for number in self._processes for pid in below(self.pid(number))]
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)
        for process in self._processes.values():
            process.wait(60)
        return alive(pids)


@contextlib.contextmanager
def balanced(model: str, folder: Path) -> Iterator[Servers]:
    """Runs both servers and HAProxy; all of their processes must be gone at the end."""
    servers = Servers(model, folder)
    path = servers.configuration()
    subprocess.run(["haproxy", "-c", "-f", str(path)], check=True)
    balancer = subprocess.Popen(["haproxy", "-db", "-f", str(path)])
    try:
        for number in range(NUM_SERVERS):
            servers.start(number)
        wait_for("both servers", servers.all_ready)
        wait_for("the balancer", lambda: balancer.poll() is not None or is_ready(servers.url))
        assert balancer.poll() is None, "haproxy has ended"
        yield servers
    finally:
        left = servers.stop()
        balancer.send_signal(signal.SIGUSR1)
        balancer.wait(60)
    assert not left, "processes are left"


def withstand(model: str, folder: Path, seconds: float) -> None:
    """Kills parts of the servers under load and counts how answers end."""
    with balanced(model, folder) as servers:
        asyncio.run(streams_come_at_once(servers))
        asyncio.run(a_client_that_hangs_up_is_noticed(servers))
        asyncio.run(what_is_of_one_server(servers))
        asyncio.run(a_session_stays_with_its_server(servers))
        stage = "thinker" if model == FAKE else "talker"
        victim = stages_of(servers.pid(0))[stage]
        struck = under_load(servers.url, model, seconds, lambda: os.kill(victim, signal.SIGKILL))
        check(f"a {stage} killed under load", asyncio.run(struck))
        console.print(f"both again after {wait_for('both', servers.all_ready):.0f} s more")
        server, processes = servers.pid(0), below(servers.pid(0))
        struck = under_load(servers.url, model, seconds, lambda: os.kill(server, signal.SIGKILL))
        check("a server killed under load", asyncio.run(struck))
        assert not alive(processes), "processes of the dead server are left"
        servers.restart(0)
        server = servers.pid(1)
        struck = under_load(servers.url, model, seconds, lambda: os.kill(server, signal.SIGTERM))
        check("a server told to stop under load", asyncio.run(struck))
        servers.restart(1)


async def streams_come_at_once(servers: Servers) -> None:
    """The first event of a stream is here before its last has been made."""
    async with httpx.AsyncClient(timeout=120) as client:
        for number in range(NUM_CLIENTS):
            assert await ask(client, servers.url, servers.model, number) == "ok"
        body = {
            "model": servers.model,
            "messages": [{"role": "user", "content": "endless"}],
            "max_completion_tokens": 400,
            "min_tokens": 400,
            "stream": True,
        }
        loop, times = asyncio.get_running_loop(), list[float]()
        url = f"{servers.url}/v1/chat/completions"
        async with client.stream("POST", url, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                times += [loop.time()] if line else []
                if len(times) == 100:
                    break
    took = times[-1] - times[0]
    console.print(f"{len(times)} events of a stream within {took:.2f} s")
    assert took > 0.05


async def a_client_that_hangs_up_is_noticed(servers: Servers) -> None:
    """Before the first byte of its answer: the server drops the request."""
    body = {
        "model": servers.model,
        "messages": [{"role": "user", "content": "hang"}],
        "max_completion_tokens": 1000,
        "min_tokens": 1000,
    }
    async with httpx.AsyncClient(timeout=120) as client:
        url = f"{servers.url}/v1/chat/completions"
        asking = asyncio.create_task(client.post(url, json=body))
        while not await running(servers):
            assert not asking.done(), asking.result().text
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(10):
        while await running(servers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    console.print("a client that hangs up before its answer has begun is noticed")


async def running(servers: Servers) -> int:
    """Requests in the thinkers of all servers."""
    async with httpx.AsyncClient() as client:
        told = [(await client.get(f"{one}/health")).json()["stages"] for one in servers.addresses]
    return sum(stages["thinker"]["running"] for stages in told)


async def what_is_of_one_server(servers: Servers) -> None:
    """Metrics and commands are not asked of any server."""
    async with httpx.AsyncClient() as client:
        for path in ("/metrics", "/admin/sleep"):
            answer = await client.get(f"{servers.url}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "of_one_server")
        assert (await client.get(f"{servers.addresses[0]}/metrics")).status_code == 200


async def a_session_stays_with_its_server(servers: Servers) -> None:
    """All requests of one name go to one server, and not all names to the same."""
    asked = [{"role": "user", "content": "Hello."}]
    body: dict[str, Any] = {"model": servers.model, "messages": asked}
    body["max_completion_tokens"] = 2
    owners = []
    async with httpx.AsyncClient(timeout=120) as client:
        for name in ("a", "b", "c", "d"):
            before = await posts(servers)
            for _ in range(3):
                url = f"{servers.url}/v1/chat/completions"
                answer = await client.post(url, json=body, headers={SESSION: name})
                assert answer.status_code == 200, answer.text
            gained = [after - b for b, after in zip(before, await posts(servers), strict=True)]
            assert sorted(gained) == [0, 3], gained
            owners.append(gained.index(3))
    assert set(owners) == {0, 1}
    console.print(f"sessions a, b, c, d stay with servers {owners}")


async def posts(servers: Servers) -> list[int]:
    """How many requests each server has answered."""
    async with httpx.AsyncClient() as client:
        pages = [(await client.get(f"{one}/metrics")).text for one in servers.addresses]
    counted = [re.findall(r"^omnistage_requests_total\{.* (\S+)$", page, re.M) for page in pages]
    return [round(sum(map(float, numbers))) for numbers in counted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny"
        if not arguments.fake:
            write_tiny_checkpoint(model, seed=0)
        withstand(FAKE if arguments.fake else str(model), folder, arguments.seconds)


if __name__ == "__main__":
    main()
