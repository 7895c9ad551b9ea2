"""The agent of a node as an actor of Ray, and how it is called."""

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from ray.exceptions import RayError, RayTaskError

from omnistage.connectors.tcp.orders import LinkSettings
from omnistage.server.placement.agent import Node
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

    def __getattr__(self, name: str) -> Callable[..., Coroutine[object, object, Any]]:
        call = getattr(self._actor, name)

        async def ask(*args: object) -> Any:
            with lost_as_ours():
                return await call.remote(*args)

        return ask


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
