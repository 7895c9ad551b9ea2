"""The channels of one run: their addresses, and the connectors that make them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from omnistage.connectors import connector_type
from omnistage.connectors.contract import ChannelUsage, Connector, Losses, NoChannel
from omnistage.connectors.options import Option
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.rules.parallel import num_lanes
from omnistage.stages.messages.addresses import (
    feed_address,
    is_end_of,
    lane_addresses,
    opens_address,
    outputs_address,
    requests_address,
    rows_address,
)

GATEWAY_CONNECTOR = "shm"
REQUESTS_ARENA_MB = 80  # a request holds its media: the largest body fits into half of it
IMAGES_ARENA_MB = 144  # and so do the largest images with a mask, 4096 x 4096 x 4

MakeConnector = Callable[[str, Path, Mapping[str, Option]], Connector]


class Channels:
    """Creates every channel of a graph before any stage starts, and destroys them at the end.

    Those of replicas that may be started later too: every process opens its ends when it starts.
    """

    def __init__(self, graph: StageGraph, directory: Path, make_connector: MakeConnector) -> None:
        self._directory = directory
        self._connectors = sorted({edge.connector.name for edge in graph.edges})
        self.gateway = make_connector(GATEWAY_CONNECTOR, directory, {})
        self._channels: list[tuple[Connector, str]] = []
        large = make_connector(GATEWAY_CONNECTOR, directory, {"arena_mb": REQUESTS_ARENA_MB})
        images = make_connector(GATEWAY_CONNECTOR, directory, {"arena_mb": IMAGES_ARENA_MB})
        entry = images if "image" in graph.outputs else large
        # The stage's own process never holds a request for these: only rows need credit.
        unlimited = make_connector(GATEWAY_CONNECTOR, directory, {"credit": 0})
        for name, replica in graph.replicas.items():
            spec = graph.spec_of(name)
            if KINDS[spec.kind].feeds_itself:
                self._add(unlimited, feed_address(name, name), targets=num_lanes(spec.engine))
            requests = self.gateway if graph.incoming(replica.stage) else entry
            makes_images = replica.stage in (graph.outputs.get("image"), graph.outputs.get("video"))
            outputs = images if makes_images else self.gateway
            self._channels.append((requests, requests_address(name)))
            self._channels.append((outputs, outputs_address(name)))
        pairs = [(name, *target) for name in graph.replicas for target in graph.targets_of(name)]
        for source, edge, target in pairs:
            options = dict(edge.connector.options)
            rows = make_connector(edge.connector.name, directory, options)
            control = make_connector(edge.connector.name, directory, {**options, "credit": 0})
            ends = source, target
            sources, targets = (num_lanes(graph.spec_of(name).engine) for name in ends)
            self._add(control, opens_address(*ends))
            self._add(control, feed_address(*ends), targets=targets)
            self._add(rows, rows_address(*ends), sources, targets)

    def _add(self, connector: Connector, address: str, sources: int = 1, targets: int = 1) -> None:
        """A channel for each pair of lanes."""
        for addresses in lane_addresses(address, sources, targets):
            self._channels += [(connector, one) for one in addresses]

    def create(self) -> None:
        """Make them all."""
        for connector, address in self._channels:
            connector.create(address)

    @property
    def addresses(self) -> list[str]:
        """Returns the addresses of all of them."""
        return [address for _, address in self._channels]

    def renew(self, stage: str) -> None:
        """Empty every channel that `stage` has an end of; the other ends see it by themselves."""
        for connector, address in self._channels:
            if is_end_of(stage, address):
                connector.renew(address)

    def usages(self) -> Iterator[tuple[str, ChannelUsage]]:
        """Returns what goes through each of those that are there."""
        for connector, address in self._channels:
            with suppress(NoChannel):
                yield address, connector.usage(address)

    def losses(self) -> Iterator[Losses]:
        """Who tells of edges that are lost, once the channels are there."""
        for tells in filter(None, (connector_type(name).losses for name in self._connectors)):
            found = tells(self._directory)
            if found is not None:
                yield found

    def destroy(self) -> None:
        """Remove them all; every end is closed."""
        for connector, address in self._channels:
            connector.destroy(address)
