"""Collects what a gateway hears of a stage, by request."""

from collections import defaultdict

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stages.messages.to_gateway import ToGateway


class Heard:
    """Keeps what a stage has sent, and grants each chunk but those that nobody reads."""

    def __init__(self) -> None:
        self.got: dict[str, list[Chunk[ToGateway]]] = defaultdict(list)
        self.unread: set[str] = set()  # requests whose client reads nothing

    def hear(self, outputs: Receiver[ToGateway]) -> None:
        """Take what has come."""
        while (chunk := outputs.receive()) is not None:
            self.got[chunk.request_id].append(chunk)
            if chunk.request_id not in self.unread:
                outputs.grant(chunk.request_id)

    def has_last(self, name: str) -> bool:
        """Return whether all of a request has come; that may be behind the end of its task."""
        return bool(self.got[name]) and self.got[name][-1].last
