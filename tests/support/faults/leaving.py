"""Clients of images that leave while a stage has their requests, which end in no other way."""

import asyncio
import contextlib

import httpx
from support.faults.killed_image_stage import Process, Send
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.servers.image_requests import ask
from support.servers.server import TinyServer
from support.servers.snapshots import counted, counted_by_now
from support.waiting import until

NUM_CLIENTS = 4


async def made_of_ids_without_end(server: TinyServer, seed: int) -> httpx.Response:
    """Ask for images that a model makes out of so many ids that they take minutes."""
    return await ask(server, ["a cat"] * 8, seed, size="1024x1024")


async def all_leave(
    server: TinyServer,
    send: Send,
    within: str,
    still: Process | None = None,
    counter: str = "",
) -> None:
    """Send requests by their seeds, and leave once all are `within` a stage whose counter grew.

    Those that are whole before are sent again; `still` is a process without which none is, and
    which makes nothing meanwhile. Returns when no stage has a request.
    """
    with contextlib.nullcontext() if still is None else stopped(pid_of(server, *still)):
        while (running := await all_within(server, send, within, counter)) is None:
            pass
        for task in running:
            assert task.cancel(), task.result().text
        await asyncio.wait(running)
        assert all(task.cancelled() for task in running)
    await until(lambda: not any(stage["running"] for stage in server.health().values()))


async def all_within(
    server: TinyServer, send: Send, within: str, counter: str
) -> list[asyncio.Task[httpx.Response]] | None:
    """Send the requests: they, once all are `within` the stage; None if one was whole before."""
    before = await asyncio.to_thread(counted_by_now, server, within, counter)

    def are_there() -> bool:
        stage = server.health()[within]
        has_grown = not counter or counted(server, within, counter) > before
        return bool(stage["running"] == NUM_CLIENTS and has_grown)

    running = [asyncio.ensure_future(send(seed)) for seed in range(NUM_CLIENTS)]
    await until(lambda: any(task.done() for task in running) or are_there())
    if not any(task.done() for task in running):
        return running
    for answer in await asyncio.gather(*running):
        assert answer.status_code == 200, answer.text
    return None
