"""Slots for blocks of rows: which are kept, which go, and that none is two blocks'."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.stages.vllm.rows.row_index import RowIndex

SIZE = 4
ALL = range(SIZE)


def kept(index: RowIndex, *names: str, offsets: Sequence[int] = range(SIZE)) -> list[list[int]]:
    """Keep rows of blocks; where they are."""
    places = []
    for name in names:
        slot = index.open(name)
        assert slot is not None
        places.append(index.keep(slot, np.array(offsets)).tolist())
    return places


def wanted(*blocks: Sequence[int]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Rows at these offsets of each block."""
    flags = np.zeros((len(blocks), SIZE), bool)
    for block, offsets in enumerate(blocks):
        flags[block, list(offsets)] = True
    return flags


def covered(index: RowIndex, names: str, *blocks: Sequence[int]) -> int:
    return index.num_covered(names, wanted(*(blocks or [range(SIZE)] * len(names))))


def test_a_prompt_is_covered_up_to_the_first_block_with_a_row_that_is_not_kept() -> None:
    index = RowIndex(8, SIZE)
    kept(index, "a", "c")
    kept(index, "b", offsets=[0, 2])
    assert covered(index, "abc") == 1
    assert covered(index, "abc", ALL, [0, 2], [1]) == 3
    assert covered(index, "abc", ALL, [0, 1], [1]) == 1
    assert covered(index, "xya", [], [], [3]) == 3  # of blocks without rows nothing is kept
    assert covered(index, "") == 0


def test_rows_are_where_they_were_kept_and_are_kept_once() -> None:
    index = RowIndex(8, SIZE)
    first = kept(index, "a", "b", offsets=[1, 3])
    assert index.places("b", np.array([1, 3])).tolist() == first[1]
    assert kept(index, "b")[0] == [first[1][0] - 1, -1, first[1][0] + 1, -1]
    with pytest.raises(AssertionError, match="not kept"):
        index.places("a", np.array([0]))


def test_the_block_that_was_used_longest_ago_goes() -> None:
    index = RowIndex(3, SIZE)
    kept(index, "a", "b", "c")
    index.begin_step()
    index.use("a")
    index.begin_step()
    kept(index, "d", offsets=[0])
    assert [covered(index, name) for name in "abc"] == [1, 0, 1]
    assert covered(index, "d") == 0  # the rows of the block before are no rows of it
    assert len(index) == 3


def test_of_one_prompt_the_last_block_goes_first() -> None:
    """Without its beginning the rest of a prompt could not be read."""
    index = RowIndex(3, SIZE)
    kept(index, "a", "b", "c")
    index.use("abc")
    index.begin_step()
    kept(index, "x")
    assert covered(index, "abc") == 2


def test_a_slot_that_was_used_in_this_step_does_not_go() -> None:
    index = RowIndex(2, SIZE)
    kept(index, "a", "b")
    index.begin_step()
    index.use("a")
    kept(index, "c")
    assert index.open("d") is None
    assert covered(index, "a") == 1
    index.begin_step()
    assert index.open("d") is not None


def test_a_slot_gets_its_name_later_and_the_fuller_one_stays() -> None:
    index = RowIndex(2, SIZE)
    for offsets, name, count in (([0], "a", 0), ([0, 1], "a", 1), ([3], "a", 1)):
        slot = index.open(None)
        assert slot is not None
        index.keep(slot, np.array(offsets))
        index.begin_step()
        index.name(slot, name)
        assert covered(index, name, [0, 1]) == count
        assert len(index) == 1
    assert index.open(None) is not None  # the slots of the others are free


@pytest.mark.parametrize("offsets", [[0, 1, 2], [1, 2, 3]])
def test_a_slot_in_use_or_with_a_row_of_its_own_keeps_its_name(offsets: list[int]) -> None:
    index = RowIndex(2, SIZE)
    held = index.open(None)
    assert held is not None
    index.keep(held, np.array(offsets))
    index.begin_step()
    (places,) = kept(index, "a", offsets=[0, 1])
    if 0 not in offsets:
        index.begin_step()
    index.name(held, "a")
    assert index.places("a", np.array([0, 1])).tolist() == places


def test_one_row_is_kept_once() -> None:
    index = RowIndex(1, SIZE)
    slot = index.open("a")
    assert slot is not None
    assert [index.keep_one(slot, 2), index.keep_one(slot, 2)] == [slot * SIZE + 2, -1]
    assert covered(index, "a", [2]) == 1


def test_nothing_is_kept_after_clearing_and_all_slots_are_free() -> None:
    index = RowIndex(2, SIZE)
    kept(index, "a")
    held = index.open(None)
    assert held is not None
    index.clear()
    assert covered(index, "a") == 0
    index.free(held)
    kept(index, "x", "y")
    assert len(index) == 2


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "hold", "name", "free", "use", "step", "clear"]),
        st.sampled_from("abcdefgh"),
        st.sets(st.integers(0, SIZE - 1), min_size=1),
    ),
    max_size=60,
)


@given(operations=OPERATIONS, num_slots=st.integers(1, 4))
def test_what_is_kept_is_what_was_written_there_last(
    operations: list[tuple[str, str, set[int]]], num_slots: int
) -> None:
    """However blocks come and go: a place has one writer, until its block is gone."""
    index = RowIndex(num_slots, SIZE)
    memory: dict[int, str] = {}  # what is written at each place
    held: list[tuple[int, str]] = []  # slots without a name, each with the block that it is
    for what, name, chosen in operations:
        offsets = np.array(sorted(chosen))
        if what in ("keep", "hold"):
            slot = index.open(name if what == "keep" else None)
            if slot is None:
                continue
            held += [(slot, name)] if what == "hold" else []
            for place, offset in zip(index.keep(slot, offsets).tolist(), offsets, strict=True):
                if place >= 0:
                    memory[place] = f"{name}{offset}"
        elif what == "name" and held:
            slot, its_name = held.pop(0)
            index.name(slot, its_name)
        elif what == "free" and held:
            index.free(held.pop(0)[0])
        elif what == "use":
            index.use(name)
        elif what == "step":
            index.begin_step()
        elif what == "clear":
            index.clear()
        assert len(index) + len(held) <= num_slots
        for block in "abcdefgh":
            for offset in range(SIZE):
                if covered(index, block, [offset]):
                    (place,) = index.places(block, np.array([offset])).tolist()
                    assert memory[place] == f"{block}{offset}"
