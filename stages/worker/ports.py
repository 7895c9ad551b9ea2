"""One end of an edge's channel, as it travels to the process that opens it."""

from pathlib import Path

import msgspec

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Connector, Receiver, Sender
from omnistage.connectors.options import Option
from omnistage.stages.messages.addresses import lane_addresses
from omnistage.stages.messages.edge import EDGE, Edge
from omnistage.stages.worker.lanes import to_lanes


class Port(msgspec.Struct, frozen=True):
    """One end of an edge's channel, as it travels in an engine's configuration.

    Between stages with `sources` and `targets` lanes there is a channel for each pair of lanes.
    """

    address: str
    connector: str
    directory: str
    options: dict[str, Option]
    sources: int = 1
    targets: int = 1

    def sender(self, lane: int = 0) -> Sender:
        """Open the sending end of a lane, to all lanes of the target."""
        connector = self._connector()
        addresses = lane_addresses(self.address, self.sources, self.targets)[lane]
        return to_lanes([connector.sender(address) for address in addresses])

    def receivers(self, lane: int = 0) -> list[Receiver[Edge]]:
        """Open the receiving ends of a lane, one from each lane of the source."""
        connector = self._connector()
        addresses = lane_addresses(self.address, self.sources, self.targets)
        return [connector.receiver(targets[lane], EDGE) for targets in addresses]

    def receiver(self) -> Receiver[Edge]:
        """Open the receiving end of a channel without lanes."""
        (receiver,) = self.receivers()
        return receiver

    def _connector(self) -> Connector:
        return make_connector(self.connector, Path(self.directory), self.options)
