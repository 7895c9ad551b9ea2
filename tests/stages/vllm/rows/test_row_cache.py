"""What a request may read, keeps and replays, without an engine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omnistage.stages.vllm.rows.row_cache import RowCache, asked_gib, wanted_rows
from omnistage.stages.vllm.step.request_options import ExportedRows

SIZE, MOST = 4, 64
ALL = ExportedRows()


class Asked:
    """A request as the cache sees it; hashes of blocks are their tokens."""

    def __init__(self, name: str, tokens: str) -> None:
        self.request_id = name
        self.prompt_token_ids = [ord(token) for token in tokens]
        self.block_hashes: list[str] = []
        self.set_tokens(tokens)

    def set_tokens(self, tokens: str) -> None:
        """All tokens that are known now."""
        ends = range(SIZE, len(tokens) + 1, SIZE)
        self.block_hashes[:] = [tokens[:end] for end in ends]


def asked(name: str, tokens: str) -> Any:
    return Asked(name, tokens)


def compute(cache: RowCache, request: Any, start: int, end: int) -> tuple[list[int], list[int]]:
    """Compute these positions in a step; what is replayed before, and where the rows are kept."""
    positions = np.arange(start, end)
    replay, places = cache.step(request.request_id, 1, positions, np.ones(end - start, bool))
    cache.begin_step()
    return [] if replay is None else replay.positions.tolist(), places.tolist()


def test_rows_of_an_answer_are_kept_once_its_tokens_are_known() -> None:
    cache, first = RowCache(4, SIZE, MOST), asked("a", "abcde")
    assert cache.num_readable(first, ALL) == 0
    compute(cache, first, 0, 5)
    compute(cache, first, 5, 6)
    compute(cache, first, 6, 7)
    first.set_tokens("abcdefg")
    compute(cache, first, 7, 8)
    first.set_tokens("abcdefghi")
    cache.finish(first)
    second = asked("b", "abcdefghi")
    assert cache.num_readable(second, ALL) == 8
    assert compute(cache, second, 8, 9)[0] == list(range(8))


def test_a_row_whose_token_was_sampled_anew_is_not_read() -> None:
    """A step that was under way at a preemption may have had another token."""
    cache, request = RowCache(8, SIZE, MOST), asked("a", "abcdef")
    cache.num_readable(request, ALL)
    compute(cache, request, 0, 6)
    compute(cache, request, 6, 7)  # of a token that is dropped
    assert cache.num_readable(request, ALL) == 4
    assert compute(cache, request, 4, 6) == ([], [4, 5])
    request.set_tokens("abcdefxy")
    cache.finish(request)
    other = asked("b", "abcdefxyz")
    assert cache.num_readable(other, ALL) == 4


def test_rows_of_an_unfinished_answer_are_read_by_others() -> None:
    cache, first = RowCache(8, SIZE, MOST), asked("a", "abcd")
    cache.num_readable(first, ALL)
    compute(cache, first, 0, 8)
    first.set_tokens("abcdefghi")
    compute(cache, first, 8, 9)
    assert cache.num_readable(asked("b", "abcdefghi"), ALL) == 8


def test_a_request_that_is_cut_off_leaves_its_slots() -> None:
    cache = RowCache(1, SIZE, MOST)
    for name in "ab":
        request = asked(name, name * 3)
        cache.num_readable(request, ALL)
        assert compute(cache, request, 0, 3)[1] == [0, 1, 2]
        cache.finish(request)
        assert len(cache) == 0


def test_rows_that_find_no_room_are_not_kept() -> None:
    cache, request = RowCache(1, SIZE, MOST), asked("a", "abcdefgh")
    cache.num_readable(request, ALL)
    assert compute(cache, request, 0, 8)[1] == [0, 1, 2, 3, -1, -1, -1, -1]
    cache.finish(request)
    assert cache.num_readable(asked("b", "abcdefgh"), ALL) == 4


def test_no_more_rows_are_replayed_than_may_leave_at_once() -> None:
    """The rest is computed, at the pace of the engine's steps."""
    cache, request = RowCache(8, SIZE, 9), asked("a", "abcdefghijklmnopqrst")
    cache.num_readable(request, ALL)
    compute(cache, request, 0, 20)
    cache.finish(request)
    again = asked("b", "abcdefghijklmnopqrst")
    assert cache.num_readable(again, ALL) == 8
    assert compute(cache, again, 8, 20)[0] == list(range(8))
    assert cache.num_readable(again, ALL) == 20  # preempted: its rows have left
    few = asked("c", "abcdefghijklmnopqrst")
    assert cache.num_readable(few, ExportedRows(ids=[ord("a"), ord("s")])) == 20


def test_only_rows_that_leave_are_kept_and_needed() -> None:
    cache, request = RowCache(8, SIZE, MOST), asked("a", "abMdefghijklmMop")
    media = ExportedRows(ids=[ord("M")])
    assert cache.num_readable(request, media) == 0
    positions = np.arange(16)
    is_exported = wanted_rows(media, request.prompt_token_ids)
    assert isinstance(is_exported, np.ndarray)
    _, places = cache.step("a", 1, positions, is_exported)
    assert np.flatnonzero(places >= 0).tolist() == [2, 13]
    assert len(cache) == 2
    again = asked("b", "abMdefghijklmMop")
    assert cache.num_readable(again, media) == 16
    assert compute(cache, again, 15, 16)[0] == [2, 13]
    assert cache.num_readable(asked("c", "abMdefghijklmMop"), ALL) == 0


def test_after_clearing_nothing_is_read_also_of_requests_that_run() -> None:
    cache, request = RowCache(2, SIZE, MOST), asked("a", "abcdef")
    cache.num_readable(request, ALL)
    compute(cache, request, 0, 6)
    cache.clear()
    request.set_tokens("abcdefgh")
    cache.finish(request)
    assert cache.num_readable(asked("b", "abcdefgh"), ALL) == 0
    after = asked("c", "xyzabcde")
    cache.num_readable(after, ALL)
    assert min(compute(cache, after, 0, 8)[1]) == 0  # both slots are free


def test_which_rows_leave_is_one_of_three_options() -> None:
    ids = [5, 6, 7, 6]
    cases = [ExportedRows(ids=[6]), ExportedRows(first=3), ALL]
    found = [np.broadcast_to(wanted_rows(one, ids), 4).tolist() for one in cases]
    assert found == [[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]]
    assert [one.are_all for one in cases] == [False, False, True]


@pytest.mark.parametrize("wrong", [-1, True, "1", float("nan"), float("inf"), None])
def test_a_size_that_is_none_is_refused_by_its_option(wrong: Any) -> None:
    ports: Any = SimpleNamespace(name="thinker", engine={}, options={"row_cache_gib": wrong})
    with pytest.raises(ValueError, match=r"options\.row_cache_gib of stage thinker"):
        asked_gib(ports)


def test_rows_are_kept_by_default_but_not_beside_another_scheduler() -> None:
    ports: Any = SimpleNamespace(name="thinker", engine={}, options={})
    assert asked_gib(ports) == 1
    ports.options["row_cache_gib"] = 0
    assert asked_gib(ports) == 0
    ports.options["row_cache_gib"] = 2.5
    assert asked_gib(ports) == 2.5
    ports.engine["scheduler_cls"] = "some.other.Scheduler"
    assert asked_gib(ports) == 0
