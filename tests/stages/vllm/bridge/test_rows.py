"""Rows and slots of a step against a plain loop."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.bridge.rows import RowNumbers


def output(
    new: dict[str, tuple[int, list[int]]] | None = None,
    cached: dict[str, tuple[list[int] | None, int]] | None = None,
    scheduled: dict[str, int] | None = None,
    finished: tuple[str, ...] = (),
    resumed: tuple[str, ...] = (),
) -> Any:
    cached = cached or {}
    return SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=name,
                prompt_token_ids=[0] * length,
                block_ids=(blocks,),
                num_computed_tokens=0,
            )
            for name, (length, blocks) in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            new_block_ids=[None if b is None else (b,) for b, _ in cached.values()],
            num_computed_tokens=[done for _, done in cached.values()],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens=scheduled or {},
    )


@pytest.fixture
def rows() -> RowNumbers:
    return RowNumbers(num_rows=2, max_model_len=16, block_size=4)


def step(rows: RowNumbers, so: Any) -> list[tuple[int, int, int, bool]]:
    rows.release(so)
    rows.assign(so)
    tokens = rows.tokens(so)
    columns = (tokens.rows, tokens.positions, tokens.slots, tokens.is_last)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_prefill_and_decode_in_one_step(rows: RowNumbers) -> None:
    step(rows, output(new={"a": (3, [5])}, scheduled={"a": 3}))
    found = step(
        rows,
        output(new={"b": (6, [7, 2])}, cached={"a": (None, 3)}, scheduled={"a": 1, "b": 6}),
    )
    assert found == [
        (1, 3, 23, True),
        (2, 0, 28, False),
        (2, 1, 29, False),
        (2, 2, 30, False),
        (2, 3, 31, False),
        (2, 4, 8, False),
        (2, 5, 9, True),
    ]


def test_new_blocks_are_appended(rows: RowNumbers) -> None:
    step(rows, output(new={"a": (4, [5])}, scheduled={"a": 4}))
    assert step(rows, output(cached={"a": ([9], 4)}, scheduled={"a": 1})) == [(1, 4, 36, True)]


def test_a_resumed_request_starts_its_blocks_again(rows: RowNumbers) -> None:
    step(rows, output(new={"a": (4, [5])}, scheduled={"a": 4}))
    so = output(cached={"a": ([3, 1], 0)}, scheduled={"a": 5}, resumed=("a",))
    assert [line[2] for line in step(rows, so)] == [12, 13, 14, 15, 4]


def test_an_id_that_comes_again_has_its_new_row_though_the_steps_ids_are_the_same(
    rows: RowNumbers,
) -> None:
    step(rows, output(new={"a": (1, [1]), "b": (1, [2])}, scheduled={"a": 1, "b": 1}))
    assert step(rows, output(cached={"b": (None, 1)}, scheduled={"b": 1})) == [(2, 1, 9, True)]
    for name in ("b", "a"):
        rows.release(output(finished=(name,)))
    assert step(rows, output(new={"b": (1, [3])}, scheduled={"b": 1})) == [(1, 0, 12, True)]
    assert step(rows, output(cached={"b": (None, 1)}, scheduled={"b": 1})) == [(1, 1, 13, True)]


def test_one_step_may_finish_one_request_and_start_another(rows: RowNumbers) -> None:
    step(rows, output(new={"a": (1, [1]), "b": (1, [2])}, scheduled={"a": 1, "b": 1}))
    so = output(new={"c": (1, [3])}, scheduled={"c": 1}, finished=("a",))
    assert rows.release(so) == [("a", 1)]
    assert [row for row, _ in rows.assign(so)] == [1]
