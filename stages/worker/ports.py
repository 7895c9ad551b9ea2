"""One end of an edge's channel, as it travels to the process that opens it."""

from pathlib import Path

import msgspec

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.options import Option
from omnistage.stages.messages.edge import EDGE, Edge


class Port(msgspec.Struct, frozen=True):
    """One end of an edge's channel, as it travels in an engine's configuration."""

    address: str
    connector: str
    directory: str
    options: dict[str, Option]

    def sender(self) -> Sender:
        """Open the sending end."""
        return make_connector(self.connector, Path(self.directory), self.options).sender(
            self.address
        )

    def receiver(self) -> Receiver[Edge]:
        """Open the receiving end."""
        return make_connector(self.connector, Path(self.directory), self.options).receiver(
            self.address, EDGE
        )
