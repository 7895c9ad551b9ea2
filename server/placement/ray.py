"""A Ray cluster as the nodes of a run: a placement group with a bundle a stage, an agent a node.

The only file that knows Ray. The bundles keep their room, and their GPUs, until the run ends or
this process does; then Ray ends the agents too, and with them what they started. A replica that was
added later has a group of its own, which goes with it.

Many calls of Ray wait for its head. They are made one after another in a thread of their own, so
that neither requests nor the gateway's other threads wait.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from omnistage.server.placement.agent import Agent
from omnistage.server.placement.node_agent import HomeAgent
from omnistage.server.placement.ray_agent import ActorAgent, RayAgent, lost_as_ours
from omnistage.stage_configs.declared.placement import GPU
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import Json

logger = logging.getLogger(__name__)
T = TypeVar("T")

CREATED = "CREATED"
ANSWER_S = 5.0
CONCURRENCY = 1000  # calls of one agent at once: each stage has some that wait


class NoCluster(Exception):
    """There is no cluster to be had; the message says how to get one."""


class RayCluster:
    """The cluster, from `connect` to `close`."""

    def __init__(self, graph: StageGraph, directory: Path, environment: Mapping[str, str]) -> None:
        self._graph = graph
        self._own_agent = HomeAgent(directory, environment)
        self._bundles: dict[str, tuple[PlacementGroup, int]] = {}
        self._actors: Json = {}
        self._thread = ThreadPoolExecutor(1, "ray")

    def connect(self) -> None:
        """Join the cluster and ask it for room for every stage; raises NoCluster."""
        address = self._graph.placement.address
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                check_answers(address)
                with signals_kept():
                    ray.init(address, log_to_driver=False, configure_logging=False)
            except OSError as error:
                cure = "`ray start --head` makes one on this machine"
                raise NoCluster(f"no cluster at {address}: {error}; {cure}") from None
        self.home = ray.get_runtime_context().get_node_id()
        self._reserve(
            [
                replica.name
                for spec in self._graph.stages.values()
                for replica in spec.all_replicas[: spec.num_replicas]
            ]
        )

    def _reserve(self, names: Sequence[str]) -> None:
        """Ask for room for these together."""
        bundles = [self._graph.spec_of(name).bundle for name in names]
        group = placement_group(bundles, self._graph.placement.strategy)
        self._bundles |= {name: (group, index) for index, name in enumerate(names)}

    def close(self) -> None:
        """Give the room back and leave."""
        self._thread.shutdown()
        for group in {group.id: group for group, _ in self._bundles.values()}.values():
            remove_placement_group(group)
        if self._is_ours:
            ray.shutdown()

    async def node_of(self, stage: str) -> str | None:
        """Where a stage's bundle is, if that node lives."""
        return await self._call(self._node_of, stage)

    async def _call(self, function: Callable[[str], T], argument: str) -> T:
        """Have something done in the thread of Ray's calls."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, argument)

    def _node_of(self, stage: str) -> str | None:
        if stage not in self._bundles:
            self._reserve([stage])  # a replica that was added later
        group, index = self._bundles[stage]
        table = placement_group_table(group)
        node: str | None = table["bundles_to_node_id"].get(index)
        living = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
        return node if node in living and table["state"] == CREATED else None

    async def release(self, stage: str) -> None:
        """Give back the room of a replica that is gone, unless others were asked for with it."""
        await self._call(self._release, stage)

    def _release(self, stage: str) -> None:
        groups = [group for group, _ in self._bundles.values()]
        group, _ = self._bundles.get(stage, (None, 0))
        if groups.count(group) == 1:
            with warned(f"the room of stage {stage} is kept for now"):
                remove_placement_group(group)
                del self._bundles[stage]

    async def gpus_of(self, stage: str) -> Sequence[str]:
        """Returns the GPUs of its bundle: they are its own until the group is removed."""
        if not self._graph.spec_of(stage).num_gpus:
            return ()
        with lost_as_ours():
            gpus: Sequence[str] = await (await self._call(self._ask_gpus, stage))
        return gpus

    def _ask_gpus(self, stage: str) -> Any:
        bundle = PlacementGroupSchedulingStrategy(*self._bundles[stage])
        num_gpus = self._graph.spec_of(stage).num_gpus
        task = ray.remote(num_cpus=0, num_gpus=num_gpus, max_retries=0)(given_gpus)
        return task.options(scheduling_strategy=bundle).remote()

    async def address_of(self, node: str) -> str:
        """Returns the address by which Ray reaches it."""
        return await self._call(address_of, node)

    async def agent_on(self, node: str) -> Agent:
        """A new actor on a node; on our own, none is needed."""
        if node == self.home:
            return self._own_agent
        return await self._call(self._make_agent, node)

    def _make_agent(self, node: str) -> Agent:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(num_cpus=0, max_concurrency=CONCURRENCY)(RayAgent)
        self._actors[node] = actor.options(scheduling_strategy=there).remote()
        return ActorAgent(self._actors[node])

    def drop(self, node: str) -> None:
        """End a node's actor."""
        self._thread.submit(self._drop, node)

    def _drop(self, node: str) -> None:
        actor = self._actors.pop(node, None)
        if actor is not None:
            with warned(f"the agent on node {node} runs for now"):
                ray.kill(actor)


def address_of(node: str) -> str:
    """Where Ray reaches a node."""
    addresses = {one["NodeID"]: one["NodeManagerAddress"] for one in ray.nodes()}
    address: str = addresses[node]
    return address


def check_answers(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), ANSWER_S).close()


@contextmanager
def warned(what: str) -> Iterator[None]:
    """Logs an error of giving back: the room goes with this process at the latest."""
    try:
        yield
    except Exception:
        logger.exception("%s", what)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Ray would end this process on SIGTERM in its own way."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray changes nothing
            signal.signal(signal.SIGTERM, before)


def given_gpus() -> list[str]:
    """The GPUs of the task that calls it."""
    ids: Mapping[str, list[str]] = ray.get_runtime_context().get_accelerator_ids()
    return ids[GPU]
