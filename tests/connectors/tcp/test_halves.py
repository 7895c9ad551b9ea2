"""A node's half of a channel whose ring is renewed and destroyed beside it."""

from pathlib import Path

import pytest
from support.channels.nodes import chunk

from omnistage.connectors.contract import NoChannel
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp.halves import ReceiverHalf, SenderHalf


@pytest.mark.parametrize("kind", [SenderHalf, ReceiverHalf])
def test_a_half_whose_channel_was_renewed_and_destroyed_can_still_be_asked(
    kind: type[SenderHalf | ReceiverHalf], tmp_path: Path
) -> None:
    """Its connection may ask it once more before the link has heard of the end of the channel."""
    rings = ShmConnector(tmp_path)
    rings.create("c")
    half = kind(rings, "c", "c")
    half.join()
    sender = rings.sender("c")
    sender.send(chunk())
    sender.close()
    rings.renew("c")
    rings.destroy("c")
    with pytest.raises(NoChannel):
        half.awake()
    half.speak()
    assert half.generation == 0
    half.close()
