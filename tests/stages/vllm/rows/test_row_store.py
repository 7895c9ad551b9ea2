"""Where rows wait until they are computed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnistage.connectors.chunk import Tensor
from omnistage.stages.vllm.rows.row_store import FEWEST, RowStore
from omnistage.stages.vllm.step.step_schema import RowInput


def store() -> RowStore:
    return RowStore(RowInput(2), torch.bfloat16)


def raw(*values: int) -> np.ndarray:
    return np.array(values, np.uint32).view(np.uint8).reshape(-1, 4)


@given(st.lists(st.tuples(st.integers(0, 700), st.floats(0, 1)), max_size=12))
def test_every_row_comes_back_as_it_was_put_and_once(
    turns: list[tuple[int, float]],
) -> None:
    """However many are put at once, and whichever are taken."""
    rows, number = store(), 1
    held: dict[int, int] = {}
    for count, share in turns:
        values = list(range(number, number + count))
        number += count
        places = rows.put(raw(*values))
        assert places.min(initial=1) > 0
        assert not set(places.tolist()) & held.keys()
        held.update(zip(places.tolist(), values, strict=True))
        taken = sorted(held)[:: max(1, round(1 / max(share, 0.01)))]
        found = rows.take(np.array(taken, np.int32))
        assert found.view(np.uint32).ravel().tolist() == [held.pop(place) for place in taken]
        assert rows.num_held == len(held)


def test_memory_of_many_rows_comes_back_when_the_last_has_gone() -> None:
    rows = store()
    before = rows.num_bytes
    places = rows.put(raw(*range(10 * FEWEST)))
    assert rows.num_bytes > 9 * before
    rows.drop(places[1:])
    assert rows.num_bytes > 9 * before
    assert rows.take(places[:1]).view(np.uint32).tolist() == [[0]]
    assert (rows.num_held, rows.num_bytes) == (0, before)


def test_rows_of_another_kind_than_declared_are_refused() -> None:
    rows = store()
    assert rows.raw(Tensor("bfloat16", (3, 2), memoryview(bytes(12)))).shape == (3, 4)
    for wrong in (np.zeros((1, 2), np.float32), np.zeros((1, 4), np.float16)):
        with pytest.raises(ValueError, match=r"declared are bfloat16 \[2\]"):
            rows.raw(Tensor.from_numpy(wrong))
