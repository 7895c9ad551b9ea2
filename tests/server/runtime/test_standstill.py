"""A server that stood still, as on a paused machine, blames no stage, node or client for it."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.chats import TEXT, URL
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.waiting import pass_over, wait_until

from omnistage.connectors.standstill import patience
from omnistage.server.runtime.stage_record import StageRecord, StageState

LIMIT_S, PAUSE_S = 600.0, 10_000.0
LIMITS = ("hang_s", "start_s", "compile_s", "first_chunk_s", "next_chunk_s")
GRAPH = {**OMNI, "deadlines": dict.fromkeys(LIMITS, LIMIT_S)}


def pause(loop: asyncio.AbstractEventLoop) -> None:
    """Set the loop's clock forward: it did not run meanwhile."""
    pass_over(loop, PAUSE_S)


def asked(script: str) -> dict[str, Any]:
    return {**TEXT, "messages": [{"role": "user", "content": script}]}


def records(gateway: RunningGateway) -> dict[str, StageRecord]:
    return {name: link.record for name, link in gateway.runtime.fleet.stages.items()}


def is_late(gateway: RunningGateway) -> None:
    """Have the thinker be late with a request and not get on."""
    gateway.stages.stages["thinker"].progress = itertools.repeat(7)
    wait_until(lambda: records(gateway)["thinker"].progress == 7)
    thinker = gateway.runtime.fleet.stages["thinker"]
    gateway.do(lambda: gateway.runtime.fleet.note_overdue([thinker], LIMIT_S))


def compiles(gateway: RunningGateway) -> None:
    gateway.stages.stages["thinker"].compiles = True
    wait_until(lambda: records(gateway)["thinker"].compiles_since is not None)


def is_silent(gateway: RunningGateway) -> None:
    gateway.do(gateway.stages.stages["thinker"].freeze)


@pytest.mark.parametrize("how", [is_silent, compiles, is_late], ids=lambda how: how.__name__)
def test_no_stage_is_ended_for_it(how: Callable[[RunningGateway], None], tmp_path: Path) -> None:
    with running_gateway(tmp_path, GRAPH, frozenset({"code2wav"})) as gateway:
        how(gateway)
        before = records(gateway)
        pause(gateway._loop)
        wait_until(lambda: records(gateway)["thinker"].alive_at > before["thinker"].alive_at)
        for _ in range(10):
            gateway.do(lambda: None)
        after = records(gateway)
        assert {name: (one.state, one.generation) for name, one in after.items()} == {
            "thinker": (StageState.READY, 1),
            "talker": (StageState.READY, 1),
            "code2wav": (StageState.LOADING, 1),
        }


@pytest.mark.parametrize("script", ["hang", "pause"])
def test_no_request_is_late_for_it(script: str, tmp_path: Path) -> None:
    with running_gateway(tmp_path, GRAPH) as gateway, ThreadPoolExecutor() as pool:
        asking = pool.submit(httpx.post, gateway.url + URL, json=asked(script), timeout=600)
        thinker = gateway.stages.stages["thinker"]
        wait_until(lambda: thinker.tasks)
        if script == "pause":
            wait_until(lambda: gateway.runtime.flights.num_running)
        before = records(gateway)
        pause(gateway._loop)
        wait_until(lambda: records(gateway)["talker"].alive_at > before["talker"].alive_at)
        for _ in range(10):
            gateway.do(lambda: None)
        assert not asking.done()
        gateway.do(lambda: thinker.die("killed"))  # so that it ends
        assert asking.result().json()["error"]["code"] == "stage_unavailable"


async def test_patience_counts_only_the_time_in_which_it_could_hear() -> None:
    came = asyncio.Event()
    async with patience(LIMIT_S):
        pause(asyncio.get_running_loop())
        asyncio.get_running_loop().call_later(0.1, came.set)
        await came.wait()
    with pytest.raises(TimeoutError):
        async with patience(0.1):
            await asyncio.Event().wait()
