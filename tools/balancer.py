"""Two cells of a tiny model behind a real balancer, with kills under load (make cells).

`--front haproxy`: `omnistage cells 2`, for which haproxy must be installed; with `--fake` gateways
over stages without models, in seconds. `--front ray`: the application of Ray Serve. A stage is
killed, then a whole cell, and with HAProxy one cell is told to stop. Counted is how answers end; at
most those may fail that were in flight.
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
from typing import Any

import httpx
import psutil
from support import fake_cell
from support.cells import (
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
from support.gateway import MODEL as FAKE
from support.ports import free_port

from omnistage.server.cells.haproxy import SESSION

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
        servers = psutil.Process(self.process.pid).children()
        (found,) = [one.pid for one in servers if _listens(one, port)]
        return int(found)

    def all_ready(self) -> bool:
        return all(map(is_ready, self.addresses))


def _listens(process: psutil.Process, port: int) -> bool:
    places = [one.laddr for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
    return any(place.port == port for place in places)


def command_of(model: str, file: Path) -> list[str]:
    """What runs the cells; without a folder of a model, fake ones."""
    if model == FAKE:
        return [sys.executable, str(fake_cell.__file__), "haproxy", str(file), str(NUM_CELLS)]
    program = [sys.executable, "-m", "omnistage.server.cli", "cells", str(NUM_CELLS), model]
    return [*program, "--port", str(free_port()), "--config", str(file)]


@contextlib.contextmanager
def haproxy_cells(model: str, folder: Path) -> Iterator[Cells]:
    """`omnistage cells`, all of whose processes must be gone at the end."""
    file, log = folder / "haproxy.cfg", folder / "cells.log"
    with log.open("wb") as output:
        command = command_of(model, file)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for("the configuration", lambda: process.poll() is not None or written(file))
        assert process.poll() is None, log.read_text()[-4000:]
        (front,) = re.findall(r"bind (\S+)", file.read_text())
        found = re.findall(r"server cell\d (\S+)", file.read_text())
        addresses = [f"http://{address}" for address in found]
        cells = Cells(f"http://{front}", model, log, addresses, process)
        wait_for("both cells", lambda: process.poll() is not None or cells.all_ready())
        assert process.poll() is None, log.read_text()[-4000:]
        subprocess.run(["haproxy", "-c", "-f", str(file)], check=True)
        yield cells
        pids = below(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()[-4000:]
        assert not alive(pids), "processes are left"
        console.print(f"Ctrl-C: all of {len(pids)} processes have ended")
    except BaseException:
        console.print(log.read_text()[-4000:], markup=False)
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def written(file: Path) -> bool:
    """Whether the configuration is complete."""
    return file.exists() and f"server cell{NUM_CELLS - 1}" in file.read_text()


def through_haproxy(model: str, folder: Path, seconds: float) -> None:
    """What `omnistage cells` must stand."""
    with haproxy_cells(model, folder) as cells:
        asyncio.run(streams_come_at_once(cells))
        asyncio.run(a_client_that_hangs_up_is_noticed(cells))
        asyncio.run(what_is_of_one_cell(cells))
        asyncio.run(a_session_stays_with_its_cell(cells))
        stage = "thinker" if model == FAKE else "talker"
        victim = stages_of(cells.pid(0))[stage]
        struck = under_load(cells.url, model, seconds, lambda: os.kill(victim, signal.SIGKILL))
        check(f"a {stage} killed under load", asyncio.run(struck))
        console.print(f"both again after {wait_for('both', cells.all_ready):.0f} s more")
        cell, processes = cells.pid(0), below(cells.pid(0))
        struck = under_load(cells.url, model, seconds, lambda: os.kill(cell, signal.SIGKILL))
        check("a cell killed under load", asyncio.run(struck))
        assert not alive([cell, *processes]), "processes of the dead cell are left"
        console.print(f"both again after {wait_for('both', cells.all_ready):.0f} s more")
        cell = cells.pid(1)
        struck = under_load(cells.url, model, seconds, lambda: os.kill(cell, signal.SIGTERM))
        check("a cell told to stop under load", asyncio.run(struck))
        console.print(f"both again after {wait_for('both', cells.all_ready):.0f} s more")


async def streams_come_at_once(cells: Cells) -> None:
    """The first event of a stream is here before its last has been made."""
    async with httpx.AsyncClient(timeout=120) as client:
        for number in range(NUM_CLIENTS):
            assert await ask(client, cells.url, cells.model, number) == "ok"
        body = {
            "model": cells.model,
            "messages": [{"role": "user", "content": "endless"}],
            "max_completion_tokens": 400,
            "min_tokens": 400,
            "stream": True,
        }
        loop, times = asyncio.get_running_loop(), list[float]()
        url = f"{cells.url}/v1/chat/completions"
        async with client.stream("POST", url, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                times += [loop.time()] if line else []
                if len(times) == 100:
                    break
    took = times[-1] - times[0]
    console.print(f"{len(times)} events of a stream within {took:.2f} s")
    assert took > 0.05


async def a_client_that_hangs_up_is_noticed(cells: Cells) -> None:
    """Before the first byte of its answer: the cell drops the request."""
    body = {
        "model": cells.model,
        "messages": [{"role": "user", "content": "hang"}],
        "max_completion_tokens": 1000,
        "min_tokens": 1000,
    }
    async with httpx.AsyncClient(timeout=120) as client:
        url = f"{cells.url}/v1/chat/completions"
        asking = asyncio.create_task(client.post(url, json=body))
        while not await running(cells):
            assert not asking.done(), asking.result().text
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(10):
        while await running(cells):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    console.print("a client that hangs up before its answer has begun is noticed")


async def running(cells: Cells) -> int:
    """Requests in the thinkers of all cells."""
    async with httpx.AsyncClient() as client:
        told = [(await client.get(f"{one}/health")).json()["stages"] for one in cells.addresses]
    return sum(stages["thinker"]["running"] for stages in told)


async def what_is_of_one_cell(cells: Cells) -> None:
    """Metrics and commands are not asked of any cell."""
    async with httpx.AsyncClient() as client:
        for path in ("/metrics", "/admin/sleep"):
            answer = await client.get(f"{cells.url}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "of_one_cell")
        assert (await client.get(f"{cells.addresses[0]}/metrics")).status_code == 200


async def a_session_stays_with_its_cell(cells: Cells) -> None:
    """All requests of one name go to one cell, and not all names to the same."""
    asked = [{"role": "user", "content": "Hello."}]
    body: dict[str, Any] = {"model": cells.model, "messages": asked}
    body["max_completion_tokens"] = 2
    owners = []
    async with httpx.AsyncClient(timeout=120) as client:
        for name in ("a", "b", "c", "d"):
            before = await posts(cells)
            for _ in range(3):
                url = f"{cells.url}/v1/chat/completions"
                answer = await client.post(url, json=body, headers={SESSION: name})
                assert answer.status_code == 200, answer.text
            gained = [after - b for b, after in zip(before, await posts(cells), strict=True)]
            assert sorted(gained) == [0, 3], gained
            owners.append(gained.index(3))
    assert set(owners) == {0, 1}
    console.print(f"sessions a, b, c, d stay with cells {owners}")


async def posts(cells: Cells) -> list[int]:
    """How many requests each cell has answered."""
    async with httpx.AsyncClient() as client:
        pages = [(await client.get(f"{one}/metrics")).text for one in cells.addresses]
    counted = [re.findall(r"^omnistage_requests_total\{.* (\S+)$", page, re.M) for page in pages]
    return [round(sum(map(float, numbers))) for numbers in counted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--front", choices=["haproxy", "ray", "both"], default="both")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny"
        if not arguments.fake:
            write_tiny_checkpoint(model, seed=0)
        served = FAKE if arguments.fake else str(model)
        if arguments.front != "ray":
            through_haproxy(served, folder, arguments.seconds)
        if arguments.front != "haproxy":
            from support.ray_cells import through_ray

            through_ray(served, NUM_CELLS, arguments.seconds)


if __name__ == "__main__":
    main()
