"""Lines of results that wait for a full chunk, by row."""

import numpy as np
import pytest
import torch

from omnistage.stages.vllm.bridge.gathering import Frames, Gathering, Lines
from omnistage.stages.vllm.step.step import Ints


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


@pytest.fixture(params=[Frames, Lines])
def waiting(request: pytest.FixtureRequest) -> Gathering:
    gathering: Gathering = request.param(4)
    for row in (1, 4):
        gathering.open(row)
    return gathering


def test_each_rows_lines_come_back_in_order(waiting: Gathering) -> None:
    for frame in range(40):
        values = torch.tensor([[frame, 0], [frame, 1]], dtype=torch.int32)
        rows, counts = waiting.add(ints(1, 4), ints(frame, frame), values)
        assert rows.tolist() == [1, 4]
        assert counts.tolist() == [frame + 1] * 2
    for row, mark in ((4, 1), (1, 0)):
        positions, values = waiting.drain(row)
        assert positions.tolist() == list(range(40))
        assert values.tolist() == [[frame, mark] for frame in range(40)]
        assert values.dtype == torch.int32


def test_what_was_taken_waits_no_longer(waiting: Gathering) -> None:
    waiting.add(ints(1), ints(0), torch.tensor([[7]]))
    kept = waiting.drain(1)[1]
    _, counts = waiting.add(ints(1), ints(1), torch.tensor([[8]]))
    assert counts.tolist() == [1]
    positions, values = waiting.drain(1)
    assert (positions.tolist(), values.tolist(), kept.tolist()) == ([1], [[8]], [[7]])
    assert len(waiting.drain(1)[0]) == 0


def test_a_row_begins_anew_for_another_request(waiting: Gathering) -> None:
    waiting.add(ints(4), ints(0), torch.tensor([[1]]))
    waiting.add(ints(4), ints(1), torch.tensor([[2]]))
    waiting.open(4)
    _, counts = waiting.add(ints(4), ints(0), torch.tensor([[3]]))
    assert counts.tolist() == [1]
    assert waiting.drain(4)[1].tolist() == [[3]]


def test_lines_may_leave_positions_out_and_come_many_at_once() -> None:
    lines = Lines(2)
    rows, counts = lines.add(ints(2, 2, 1), ints(3, 9, 5), torch.tensor([[3.0], [9.0], [5.0]]))
    assert (rows.tolist(), counts.tolist()) == ([2, 1], [2, 1])
    rows, counts = lines.add(ints(2), ints(12), torch.tensor([[12.0]]))
    assert counts.tolist() == [3]
    positions, values = lines.drain(2)
    assert positions.tolist() == [3, 9, 12]
    assert values.flatten().tolist() == [3.0, 9.0, 12.0]
