"""Finds the channels between nodes: those whose two ends are on two nodes.

Every node has a ring of every channel, under the same name. Where both ends of a channel are on one
node they share its ring, and else the links of both nodes join their rings. So an end that stays
where it is has the same ring, wherever the other end moves.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Protocol

from omnistage.server.placement.agent import Agent, NodeHalf
from omnistage.stages.messages.addresses import GATEWAY, ends_of, is_end_of


class JoinedNode(Protocol):
    """The parts of a node that joining channels needs."""

    name: str
    agent: Agent

    @property
    def is_lost(self) -> bool:
        """Returns whether it is gone."""

    async def ask(self, asked: Coroutine[object, object, None]) -> None:
        """Have its agent do something."""


class Joints:
    """The joined channels of a run; `home` is the node of the gateway's ends."""

    home: JoinedNode

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._places: dict[str, JoinedNode] = {}
        self._joined: dict[str, tuple[JoinedNode, JoinedNode]] = {}
        self._numbers = itertools.count()
        self._lock = asyncio.Lock()

    def between(self, one: JoinedNode, other: JoinedNode) -> set[tuple[str, str]]:
        """The edges that go from one node to another, by their ends."""
        joined = (address for address, ends in self._joined.items() if {*ends} == {one, other})
        return {ends_of(address)[:2] for address in joined}

    async def place(self, stage: str, node: JoinedNode) -> None:
        """A stage is about to start on a node: have its channels go there."""
        async with self._lock:
            self._places[stage] = node
            mine = [address for address in self._addresses if is_end_of(stage, address)]
            await self._part([address for address in mine if self._is_moved(address)])
            await self._join([address for address in mine if address not in self._joined])

    def _is_moved(self, address: str) -> bool:
        return address in self._joined and self._joined[address] != self._wanted(address)

    def _wanted(self, address: str) -> tuple[JoinedNode, JoinedNode] | None:
        """The two nodes of a channel's ends; None for one of a single node, or not yet known."""
        source, target, _ = ends_of(address)
        ends = self._node_of(source), self._node_of(target)
        if ends[0] is None or ends[1] is None or ends[0] is ends[1]:
            return None
        return ends[0], ends[1]

    def _node_of(self, end: str) -> JoinedNode | None:
        node = self.home if end == GATEWAY else self._places.get(end)
        return None if node is None or node.is_lost else node

    async def _part(self, addresses: Sequence[str]) -> None:
        orders: dict[JoinedNode, list[str]] = defaultdict(list)
        for address in addresses:
            for node in self._joined.pop(address):
                if not node.is_lost:
                    orders[node].append(address)
        await asyncio.gather(*(node.ask(node.agent.part(some)) for node, some in orders.items()))

    async def _join(self, addresses: Sequence[str]) -> None:
        orders: dict[JoinedNode, list[NodeHalf]] = defaultdict(list)
        for address in addresses:
            ends = self._wanted(address)
            if ends is not None:
                self._joined[address] = ends
                source, target = ends
                name = f"{address}.{next(self._numbers)}"
                orders[source].append(NodeHalf(address, name, target.name, sends=True))
                orders[target].append(NodeHalf(address, name, source.name, sends=False))
        await asyncio.gather(*(node.ask(node.agent.join(some)) for node, some in orders.items()))
