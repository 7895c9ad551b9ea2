"""The connector `tcp`: a stage's ends of channels, and both rings of them on one machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omnistage.connectors.contract import ChannelUsage, NoChannel
from omnistage.connectors.messages import M, Messages
from omnistage.connectors.options import ConnectorType
from omnistage.connectors.receiver import RingReceiver
from omnistage.connectors.sender import RingSender
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.connectors.tcp.pair import Pair
from omnistage.connectors.tcp.rings import ring_name

_pairs: dict[Path, Pair] = {}  # of the run directories that this process owns


class TcpOptions(ShmOptions):
    """`arena_mb`: what a channel may hold, on either node, of which a chunk may take half."""


class TcpConnector:
    """Channels whose rings are joined over TCP.

    Whoever opens an end needs the ring of its node alone. `create` and what follows is for the one
    process that owns a run on one machine: there both rings are in its directory. Between nodes
    that is `NodeLink`'s part.
    """

    def __init__(self, directory: Path, options: TcpOptions | None = None) -> None:
        self._directory = directory
        self._options = options or TcpOptions()
        self._rings = ShmConnector(directory, self._options)

    def create(self, address: str) -> None:
        """Make both rings, and start the links if these are the first."""
        pair = _pairs.get(self._directory)
        if pair is None:
            pair = _pairs[self._directory] = Pair(self._directory)
        pair.create(address, self._options)

    def sender(self, address: str) -> RingSender:
        """Open the sending end."""
        return self._rings.sender(address)

    def receiver(self, address: str, messages: Messages[M]) -> RingReceiver[M]:
        """Open the receiving end."""
        with self._naming(address):
            access = self._rings.access(ring_name(address, False))
        again = access.reopen

        def reopen() -> memoryview:
            with self._naming(address):
                return again()

        return RingReceiver(access._replace(reopen=reopen), messages)

    def renew(self, address: str) -> None:
        """Empty both rings; the links join them again."""
        self._pair(address).renew(address)

    def usage(self, address: str) -> ChannelUsage:
        """Read from the rings that are there now."""
        return self._pair(address).usage(address)

    def destroy(self, address: str) -> None:
        """Remove both rings, and end the links after the last."""
        pair = _pairs.get(self._directory)
        if pair is None:
            return
        pair.destroy(address)
        if pair.is_idle:
            del _pairs[self._directory]
            pair.close()

    @contextmanager
    def _naming(self, address: str) -> Iterator[None]:
        """A channel that is missing is named by its address, not by that of its ring."""
        try:
            yield
        except NoChannel:
            raise self._no_channel(address) from None

    def _pair(self, address: str) -> Pair:
        try:
            return _pairs[self._directory]
        except KeyError:
            raise self._no_channel(address) from None

    def _no_channel(self, address: str) -> NoChannel:
        return NoChannel(f"no channel {address!r} in {self._directory}")


def pair_of(directory: Path) -> Pair | None:
    """The links of a run on this machine, which tell of channels that are lost."""
    return _pairs.get(directory)


CONNECTOR = ConnectorType(TcpOptions, TcpConnector, losses=pair_of)
