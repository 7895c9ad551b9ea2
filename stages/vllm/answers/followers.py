"""Answers on their way along edges, while they stream to the client."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from omnistage.stages.worker.stage import StagePorts


class Follower(Protocol):
    """An answer on its way along an edge."""

    def add(self, chunk: Mapping[str, object]) -> None:
        """Take one chunk of the answer."""

    def show_life(self) -> None:
        """More will come: we wait for our client."""

    def finish(self) -> None:
        """The answer is complete."""


async def wait_for_room(ports: StagePorts, request_id: str, followers: Sequence[Follower]) -> None:
    """Until the next chunk can go; the engine joins what comes meanwhile to one output."""
    room = ports.room
    while not room.is_free(request_id):
        try:
            async with asyncio.timeout(ports.deadlines.next_chunk_s / 2):
                await room.wait(request_id)
        except TimeoutError:
            for follower in followers:
                follower.show_life()
