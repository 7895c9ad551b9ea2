"""Two cells by Ray Serve, on a Ray of their own, with kills under load."""

import asyncio
import os
import signal
import sys
from functools import partial
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve import Application
from ray.serve._private import api as _private_api
from support import fake_server
from support.cells import (
    NUM_CLIENTS,
    STAGES,
    alive,
    ask,
    below,
    check,
    console,
    is_ready,
    under_load,
    wait_for,
)
from support.gateway import MODEL as FAKE
from support.gateway import OMNI
from support.ports import free_port

from omnistage.server import serve_app
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.serve_app import Arguments, Cell
from omnistage.stage_configs.graph import StageGraph

OBJECT_STORE_BYTES = 100 << 20
# Serve sends nothing again. Within a second it knows that a stage is gone; each client asks at most
# every 0.2 s meanwhile, beside what was in flight.
MOST_REFUSED = NUM_CLIENTS * 6
START_S = 300  # of Serve's own processes, on a machine that has other work
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class FakeCell(Cell):
    """A replica over stages without models."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        graph = StageGraph.model_validate(OMNI)
        Arguments.graph = lambda self: graph  # type: ignore[method-assign]
        vars(serve_app)["Runtime"] = partial(Runtime, launch=fake_server.launch)


def application(model: str, num_cells: int) -> Application:
    """The application, as a configuration file would ask for it."""
    arguments = Arguments(target=model, cells=num_cells, cpus=0.5, requests=8, drain_s=5)
    if model == FAKE:
        serve_app.Cell = FakeCell  # type: ignore[misc]
    return serve_app.app(arguments)


def through_ray(model: str, num_cells: int, seconds: float) -> None:
    """What cells by Serve must stand; nothing is left at the end."""
    port = free_port()
    paths = os.pathsep.join(path for path in sys.path if path)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=OBJECT_STORE_BYTES,
        runtime_env={"env_vars": {**ENVIRONMENT, "PYTHONPATH": paths}},
    )
    _private_api.HTTP_PROXY_TIMEOUT = START_S
    try:
        serve.start(http_options={"port": port})
        serve.run(application(model, num_cells), name="omnistage", route_prefix="/")
        asyncio.run(answers(f"http://127.0.0.1:{port}", model))
        strike(f"http://127.0.0.1:{port}", model, num_cells, seconds)
        stages = [pid for cell in cells() for pid in stages_below(cell).values()]
        assert len(stages) >= num_cells
    finally:
        serve.shutdown()
        ray.shutdown()
    wait_for("stages to end", lambda: not alive(stages), 60)
    console.print(f"Serve's end: all of {len(stages)} stages have ended")


async def answers(url: str, model: str) -> None:
    import httpx

    async with httpx.AsyncClient(timeout=120) as client:
        for number in range(8):
            assert await ask(client, url, model, number) == "ok"


def strike(url: str, model: str, num_cells: int, seconds: float) -> None:
    """A stage is killed, then a whole cell."""

    def all_ready() -> bool:
        found = cells()
        has_stages = all(len(stages_below(cell)) == len(STAGES) for cell in found)
        return len(found) == num_cells and has_stages and all(is_ready(url) for _ in range(8))

    wait_for("both cells", all_ready)
    stage = "thinker" if model == FAKE else "talker"
    victim = stages_below(cells()[0])[stage]
    struck = under_load(url, model, seconds, lambda: os.kill(victim, signal.SIGKILL))
    check(f"Ray Serve, a {stage} killed under load", asyncio.run(struck), most=MOST_REFUSED)
    console.print(f"both again after {wait_for('both', all_ready):.0f} s more")
    cell = cells()[0]
    processes = below(cell)
    struck = under_load(url, model, seconds, lambda: os.kill(cell, signal.SIGKILL))
    check("Ray Serve, a cell killed under load", asyncio.run(struck))
    wait_for("the dead cell's processes to end", lambda: not alive([cell, *processes]), 10)
    console.print(f"both again after {wait_for('both', all_ready):.0f} s more")


def cells() -> list[int]:
    """The processes of our own Ray's replicas that have stages."""
    raylets = [one for one in psutil.Process().children() if one.name() == "raylet"]
    workers = [one for raylet in raylets for one in raylet.children()]
    return [one.pid for one in workers if stages_below(one.pid)]


def stages_below(pid: int) -> dict[str, int]:
    """Stages of a process, by name."""
    found: dict[str, int] = {}
    for child in psutil.Process(pid).children():
        found |= {name: child.pid for name in STAGES if name in child.cmdline()}
    return found
