"""A stage of images that is killed while it has requests."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from support.faults.chaos import ready_again
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.servers.image_requests import ask, expected, is_same, pictures_of
from support.servers.server import TinyServer
from support.servers.snapshots import counted, counted_by_now

ENDLESS = {"n": 4, "size": "256x256", "num_inference_steps": 1000}  # it takes minutes
Send = Callable[[int], Awaitable[httpx.Response]]
Process = tuple[str, str]  # its stage and its role there


async def check_a_killed_stage(
    server: TinyServer,
    stage: str,
    role: str,
    bare: Any,
    *,
    send: Send | None = None,
    within: str = "dit",
    still: Process | None = None,
    counter: str = "",
    also: Callable[[], bool] = lambda: True,
) -> None:
    """Kill a process of a stage: its requests fail by its name, and it starts again.

    `bare`: the pipeline that a request afterwards is compared with. `send`: a request by its seed,
    for images that never end without it. The kill comes once all requests are `within` a stage, its
    `counter` grew by them, and what `also` must be true is; `still` makes nothing meanwhile.
    """

    async def draw(seed: int) -> httpx.Response:
        return await ask(server, "a cat", seed, **ENDLESS)

    await ready_again(server)
    before = server.health()
    count = await asyncio.to_thread(counted_by_now, server, within, counter)

    def are_there() -> bool:
        has_grown = not counter or counted(server, within, counter) > count
        return server.health()[within]["running"] == len(running) and has_grown and also()

    with contextlib.ExitStack() as stack:
        if still is not None:
            stack.enter_context(stopped(pid_of(server, *still)))
        making = send or draw
        running = [asyncio.ensure_future(making(seed)) for seed in range(3)]
        while not are_there():
            assert not any(task.done() for task in running)
            await asyncio.sleep(0.02)
        os.kill(pid_of(server, stage, role), signal.SIGKILL)
        answers = await asyncio.gather(*running)
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "stage_unavailable"
        message = answer.json()["error"]["message"]
        assert stage in message
        assert "no sign of life" not in message
    await ready_again(server)
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare, "a cat", 1)[0])
    for name, now in server.health().items():
        assert now["generation"] == before[name]["generation"] + (name == stage)
