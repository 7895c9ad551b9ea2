"""A ring uses no more memory than its backlog needs."""

from pathlib import Path

import numpy as np
import pytest
from support.channels.notes import NOTES, Note

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.shm import ShmConnector, ShmOptions


@pytest.mark.parametrize("size", [8, 5000, 300_000])
def test_a_ring_whose_reader_keeps_up_stays_small(size: int, run_directory: Path) -> None:
    connector = ShmConnector(run_directory, ShmOptions(arena_mb=16, credit=0))
    connector.create("small")
    sender, receiver = connector.sender("small"), connector.receiver("small", NOTES)
    data = np.arange(size).astype(np.uint8)
    for index in range(3000):
        sender.send(Chunk("a", Note(), index, {"v": Tensor.from_numpy(data)}))
        got = receiver.receive()
        assert got is not None
        assert got.index == index
        assert np.array_equal(got.tensors["v"].numpy(), data)
    used = (run_directory / "small").stat().st_blocks * 512
    assert used < 3 * size + 100_000
    sender.close()
    receiver.close()
    connector.destroy("small")


def test_a_ring_that_started_anew_has_its_whole_room(run_directory: Path) -> None:
    connector = ShmConnector(run_directory, ShmOptions(arena_mb=1, credit=0))
    connector.create("anew")
    sender, receiver = connector.sender("anew"), connector.receiver("anew", NOTES)
    data = Tensor.from_numpy(np.arange(9000, dtype=np.uint8))
    for _ in range(3):
        sender.send(Chunk("a", Note(), 0, {"v": data}))
        assert receiver.receive() is not None
        for index in range(100):  # nobody flushes: they fit or stay behind
            sender.send(Chunk("a", Note(), index, {"v": data}))
        got = [receiver.receive() for _ in range(100)]
        assert [chunk.index for chunk in got if chunk is not None] == list(range(100))
    sender.close()
    receiver.close()
    connector.destroy("anew")
