"""Two cells of a tiny model behind a real balancer, with kills under load (make cells).

`--front haproxy`: `omnistage cells 2`, for which haproxy must be installed. `--front ray`: the
application of Ray Serve. A talker is killed, then a whole cell, and with HAProxy one cell is told
to stop. Counted is how answers end; at most those may fail that were in flight.
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
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from support.cells import (
    NUM_CLIENTS,
    alive,
    ask,
    below,
    check,
    is_ready,
    stages_of,
    under_load,
    wait_for,
)
from support.server import free_port

NUM_CELLS = 2
SECONDS = 12.0


@dataclass(frozen=True)
class Cells:
    """Where clients ask, the log, and each cell's address."""

    url: str
    model: str
    log: Path
    addresses: list[str]
    process: subprocess.Popen[bytes]

    def pid(self, number: int) -> int:
        """The process of one cell, which listens at its address."""
        port = int(self.addresses[number].rpartition(":")[2])
        servers = [one for one in psutil.Process(self.process.pid).children() if _serves(one, port)]
        return int(servers[0].pid)

    def all_ready(self) -> bool:
        return all(map(is_ready, self.addresses))


def _serves(process: psutil.Process, port: int) -> bool:
    command = process.cmdline()
    return "serve" in command and command[-1] == str(port)


@contextlib.contextmanager
def haproxy_cells(model: str, folder: Path) -> Iterator[Cells]:
    """`omnistage cells`, all of whose processes must be gone at the end."""
    port, file, log = free_port(), folder / "haproxy.cfg", folder / "cells.log"
    command = [sys.executable, "-m", "omnistage.server.cli", "cells", str(NUM_CELLS), model]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--config", str(file)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for("the configuration", file.exists)
        found = re.findall(r"server cell\d (\S+)", file.read_text())
        addresses = [f"http://{address}" for address in found]
        cells = Cells(f"http://127.0.0.1:{port}", model, log, addresses, process)
        wait_for("both cells", lambda: process.poll() is not None or cells.all_ready())
        assert process.poll() is None, log.read_text()[-4000:]
        subprocess.run(["haproxy", "-c", "-f", str(file)], check=True)
        yield cells
        pids = below(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()[-4000:]
        assert not alive(pids), "processes are left"
        print(f"Ctrl-C: all of {len(pids)} processes have ended", flush=True)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def through_haproxy(model: str, folder: Path, seconds: float) -> None:
    """What `omnistage cells` must stand."""
    with haproxy_cells(model, folder) as cells:
        asyncio.run(streams_come_at_once(cells))
        asyncio.run(a_client_that_hangs_up_is_noticed(cells))
        asyncio.run(what_is_of_one_cell(cells))
        talker = stages_of(cells.pid(0))["talker"]
        struck = under_load(cells.url, model, seconds, lambda: os.kill(talker, signal.SIGKILL))
        check("a talker killed under load", asyncio.run(struck))
        print(f"both again after {wait_for('both', cells.all_ready):.0f} s more", flush=True)
        cell, processes = cells.pid(0), below(cells.pid(0))
        struck = under_load(cells.url, model, seconds, lambda: os.kill(cell, signal.SIGKILL))
        check("a cell killed under load", asyncio.run(struck))
        assert not alive([cell, *processes]), "processes of the dead cell are left"
        print(f"both again after {wait_for('both', cells.all_ready):.0f} s more", flush=True)
        cell = cells.pid(1)
        struck = under_load(cells.url, model, seconds, lambda: os.kill(cell, signal.SIGTERM))
        check("a cell told to stop under load", asyncio.run(struck))
        print(f"both again after {wait_for('both', cells.all_ready):.0f} s more", flush=True)


async def streams_come_at_once(cells: Cells) -> None:
    """The first event of a stream is here before its last has been made."""
    async with httpx.AsyncClient(timeout=120) as client:
        for number in range(NUM_CLIENTS):
            assert await ask(client, cells.url, cells.model, number) == "ok"
        body = {
            "model": cells.model,
            "messages": [{"role": "user", "content": "Tell me more."}],
            "max_completion_tokens": 400,
            "min_tokens": 400,
            "stream": True,
        }
        loop, times = asyncio.get_running_loop(), list[float]()
        url = f"{cells.url}/v1/chat/completions"
        async with client.stream("POST", url, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line:
                    times.append(loop.time())
    took, gaps = times[-1] - times[0], sum(b > a for a, b in zip(times, times[1:], strict=False))
    print(f"{len(times)} events within {took:.2f} s, {gaps} of them apart", flush=True)
    assert gaps > 20
    assert took > 0.2


async def a_client_that_hangs_up_is_noticed(cells: Cells) -> None:
    """Before the first byte of its answer: the cell drops the request."""
    body = {
        "model": cells.model,
        "messages": [{"role": "user", "content": "Tell me of the sea."}],
        "max_completion_tokens": 4000,
        "min_tokens": 4000,
    }
    async with httpx.AsyncClient(timeout=120) as client:
        url = f"{cells.url}/v1/chat/completions"
        asking = asyncio.create_task(client.post(url, json=body))
        while not await running(cells):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(10):
        while await running(cells):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    print("a client that hangs up before its answer has begun is noticed", flush=True)


async def running(cells: Cells) -> int:
    """Requests in the thinkers of all cells."""
    async with httpx.AsyncClient() as client:
        told = [(await client.get(f"{one}/health")).json()["stages"] for one in cells.addresses]
    return sum(stages["thinker"]["running"] for stages in told)


async def what_is_of_one_cell(cells: Cells) -> None:
    """Metrics and commands are not asked of any cell, and a session stays with one."""
    async with httpx.AsyncClient() as client:
        for path in ("/metrics", "/admin/sleep"):
            answer = await client.get(f"{cells.url}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "of_one_cell")
        assert (await client.get(f"{cells.addresses[0]}/metrics")).status_code == 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--front", choices=["haproxy", "ray", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny"
        write_tiny_checkpoint(model, seed=0)
        if arguments.front != "ray":
            through_haproxy(str(model), folder, arguments.seconds)
        if arguments.front != "haproxy":
            from support.ray_cells import through_ray

            through_ray(str(model), NUM_CELLS, arguments.seconds)


if __name__ == "__main__":
    main()
