"""The agent of a node as an actor of Ray, and how it is called."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from ray.exceptions import RayError, RayTaskError

from omnistage.connectors.tcp.orders import LinkSettings
from omnistage.server.placement.agent import News, Node, NodeHalf
from omnistage.server.placement.node_agent import NodeAgent
from omnistage.server.placement.nodes import NodeLost

OMP = "OMP_NUM_THREADS"


class RayAgent(NodeAgent):
    """An agent in an actor, whose environment is the node's but for what Ray adds for actors."""

    async def open(
        self, name: str, graph: str, environment: Mapping[str, str], link: LinkSettings
    ) -> Node:
        """Ray gives an actor without CPUs one thread; a stage takes what the node says."""
        with suppress(psutil.Error):
            raylet = psutil.Process().parent()
            if raylet is not None and OMP not in raylet.environ():
                os.environ.pop(OMP, None)
        return await super().open(name, graph, environment, link)


class ActorAgent:
    """An agent whose calls go to an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def open(
        self, name: str, graph: str, environment: Mapping[str, str], link: LinkSettings
    ) -> Node:
        with lost_as_ours():
            node: Node = await self._actor.open.remote(name, graph, dict(environment), link)
        return node

    async def has_folder(self, path: str) -> bool:
        with lost_as_ours():
            is_there: bool = await self._actor.has_folder.remote(path)
        return is_there

    async def start(self, stage: str, environment: Mapping[str, str]) -> None:
        with lost_as_ours():
            await self._actor.start.remote(stage, dict(environment))

    async def wait(self, stage: str) -> str:
        with lost_as_ours():
            ended_by: str = await self._actor.wait.remote(stage)
        return ended_by

    async def kill(self, stage: str) -> None:
        with lost_as_ours():
            await self._actor.kill.remote(stage)

    async def stop(self, stage: str, grace_s: float) -> None:
        with lost_as_ours():
            await self._actor.stop.remote(stage, grace_s)

    async def renew(self, stage: str) -> None:
        with lost_as_ours():
            await self._actor.renew.remote(stage)

    async def meet(self, peer: str, host: str, port: int) -> None:
        with lost_as_ours():
            await self._actor.meet.remote(peer, host, port)

    async def leave(self, peer: str) -> None:
        with lost_as_ours():
            await self._actor.leave.remote(peer)

    async def join(self, halves: Sequence[NodeHalf]) -> None:
        with lost_as_ours():
            await self._actor.join.remote(list(halves))

    async def part(self, addresses: Sequence[str]) -> None:
        with lost_as_ours():
            await self._actor.part.remote(list(addresses))

    async def restart_link(self) -> None:
        with lost_as_ours():
            await self._actor.restart_link.remote()

    async def news(self) -> News:
        with lost_as_ours():
            news: News = await self._actor.news.remote()
        return news

    async def close(self) -> None:
        with lost_as_ours():
            await self._actor.close.remote()


@contextmanager
def lost_as_ours() -> Iterator[None]:
    """Ray's error of an actor or a node that is gone as ours; an agent's own error as it was."""
    try:
        yield
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        reason = str(error).strip().splitlines()
        raise NodeLost(f"{type(error).__name__}: {reason[0] if reason else ''}") from None
