"""A ring uses no more memory than its backlog needs."""

from pathlib import Path

import numpy as np
import pytest

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.shm import ShmConnector


@pytest.mark.parametrize("size", [8, 5000, 300_000])
def test_a_ring_whose_reader_keeps_up_stays_small(size: int, run_directory: Path) -> None:
    connector = ShmConnector(run_directory, arena_mb=16, credit=0)
    connector.create("small")
    sender, receiver = connector.sender("small"), connector.receiver("small")
    data = np.arange(size).astype(np.uint8)
    for index in range(3000):
        sender.send(Chunk("a", "k", index, {"v": Tensor.from_numpy(data)}))
        got = receiver.receive()
        assert got is not None
        assert got.index == index
        assert np.array_equal(got.tensors["v"].numpy(), data)
    used = (run_directory / "small").stat().st_blocks * 512
    assert used < 3 * size + 100_000
    sender.close()
    receiver.close()
    connector.destroy("small")
