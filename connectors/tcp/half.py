"""Maps the ring of one half of a channel, and follows its generations."""

from omnistage.connectors.codec import ALIGNMENT
from omnistage.connectors.contract import NoChannel
from omnistage.connectors.ring import (
    GENERATION,
    JOINED,
    RENEWED,
    RING_START,
)
from omnistage.connectors.shm import ShmConnector


class HalfRing:
    """Connects one ring of this node to another node.

    `number` is the channel's on its connection; it is joined when both rings have the same
    generation, as the sender's node counts it, until either is renewed.
    """

    def __init__(self, rings: ShmConnector, address: str, name: str) -> None:
        self._rings = rings
        self._address = address
        self.name = name  # of the channel, on both nodes
        self.number = 0
        access = rings.access(address)
        self._has_chunk, self._has_room, self._reopen = access[1:]
        self._map(access.buffer)
        try:
            # A link before us may have been ended at any moment.
            self.renew(self.generation + self._words[JOINED])
        except NoChannel:
            self.close()
            raise

    def _map(self, buffer: memoryview) -> None:
        self._words = buffer[:RING_START].cast("Q")
        self._records = buffer[RING_START:]
        self.size = len(self._records) // ALIGNMENT * ALIGNMENT
        self.is_joined = False
        self._begin()

    def _begin(self) -> None:
        """The ring is a new one."""

    def _reattach(self) -> None:
        """Go over to the ring that is there now; raises NoChannel, and keeps the old one."""
        buffer = self._reopen()
        self._words.release()
        self._records.release()
        self._map(buffer)

    @property
    def generation(self) -> int:
        """The ring's."""
        return self._words[GENERATION]

    def join(self) -> None:
        """The other node's ring has the same generation."""
        self.is_joined = True
        self._words[JOINED] = 1

    def part(self) -> None:
        """The other node's ring is gone."""
        self.is_joined = False

    def renew(self, generation: int) -> None:
        """Come to this generation, if the ring has not been renewed to it by others."""
        self._rings.renew(self._address, generation)
        self._reattach()

    def lose(self) -> None:
        """The connection is gone, and so is what was on its way in a ring that was joined."""
        if self._words[JOINED]:
            self.renew(self.generation + 1)

    def follow(self) -> bool:
        """Go over to a new ring if there is one; whether there was."""
        is_renewed = bool(self._words[RENEWED])
        if is_renewed:
            self._reattach()
        return is_renewed

    def close(self) -> None:
        """Let go of the ring; an end that is on this node now gets the wake-ups that we took."""
        self._words.release()
        self._records.release()
        self._has_chunk.set()
        self._has_room.set()
        self._has_chunk.close()
        self._has_room.close()
