"""Rows without a known end, from their channel to the lines and rows that the model reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bridge.late_rows import (
    END,
    LEAST,
    MAX_LEN,
    PAD,
    VOICE,
    Engine,
    opened,
    rows,
    running_engine,
)

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.edge import Rows, RowsReleased, StageTokens
from omnistage.stages.vllm.bridge.late_rows import ALL


def released(name: str, num_rows: int, last: bool = False) -> Chunk[Any]:
    return Chunk(name, RowsReleased(num_rows), last=last)


def test_rows_of_the_prompt_are_available_before_any_row_is_released() -> None:
    inputs = opened(3)
    assert inputs.available == 0
    inputs.add(rows("a", [0, 1]))
    assert inputs.available == 2
    inputs.add(rows("a", [2, 3, 4]))
    assert inputs.available == 4  # the voice's token, too


def test_rows_that_follow_are_available_as_they_come_and_are_released() -> None:
    inputs = opened(2)
    inputs.add(rows("a", [0, 1, 2, 3, 4]))
    inputs.add(released("a", 4))
    assert inputs.available == 5
    inputs.add(released("a", 7))
    assert inputs.available == 6
    inputs.add(rows("a", [6]))
    assert inputs.available == 6
    inputs.add(rows("a", [5]))
    assert inputs.available == 8


def test_behind_the_released_end_come_the_ends_and_rows_are_dropped() -> None:
    inputs = opened(2)
    assert inputs.rows is not None
    inputs.add(rows("a", range(6)))
    inputs.add(released("a", 4, last=True))
    assert inputs.available == ALL
    assert inputs.has_all
    assert np.flatnonzero(inputs.rows.places).tolist() == [0, 1, 3, 4]
    assert inputs.table[2:8, 0].tolist() == [VOICE, -1, -1, END, PAD, PAD]
    inputs.add(rows("a", [4, 5, 6]))
    inputs.add(released("a", 6))
    assert np.flatnonzero(inputs.rows.places).tolist() == [0, 1, 3, 4]
    assert inputs.table[5, 0] == END


def test_the_end_may_come_before_the_last_rows() -> None:
    inputs = opened(2)
    inputs.add(released("a", 4, last=True))
    inputs.add(rows("a", [0, 1, 2]))
    assert (inputs.available, inputs.has_all) == (4, False)
    inputs.add(rows("a", [3]))
    assert inputs.has_all


def test_an_answer_without_rows_has_its_ends_at_once() -> None:
    inputs = opened(2)
    inputs.add(rows("a", [0, 1, 2]))
    inputs.add(released("a", 2, last=True))
    assert inputs.has_all
    assert inputs.table[2:5, 0].tolist() == [VOICE, END, PAD]


def test_rows_beyond_the_longest_request_are_dropped() -> None:
    inputs = opened(2)
    inputs.add(rows("a", range(MAX_LEN + 20)))
    assert inputs.rows is not None
    assert (inputs.rows.places > 0).sum() == MAX_LEN - 1
    inputs.add(released("a", MAX_LEN + 20, last=True))
    assert inputs.has_all


def test_the_first_row_that_follows_is_due_when_the_prompts_have_come() -> None:
    inputs = opened(6)
    inputs.add(rows("a", range(5)))
    assert not inputs.is_token_due(LEAST)
    inputs.add(rows("a", [5]))
    assert inputs.is_token_due(LEAST)
    assert not inputs.is_token_due(1)
    inputs.add(released("a", 7))
    assert inputs.is_token_due(LEAST)
    inputs.add(rows("a", [6]))
    assert not inputs.is_token_due(LEAST)


def test_a_chunk_without_rows_and_a_sign_of_life_change_nothing() -> None:
    inputs = opened(2)
    inputs.add(Chunk("a", Rows(), 0, {}, True))
    inputs.add(Chunk("a", StageTokens(), 0))
    assert (inputs.available, inputs.has_all, inputs.has_heard) == (0, False, True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with running_engine(tmp_path) as engine:
        yield engine


def test_prompts_run_in_parts_and_decodes_wait_for_their_rows(engine: Engine) -> None:
    engine.add("a", 8)
    engine.send(rows("a", range(6)))
    assert engine.step() == {"a": 6}
    engine.send(rows("a", [6, 7]))
    assert engine.step() == {}  # the first row that follows is due
    engine.send(rows("a", [8]))
    assert engine.step() == {}
    engine.send(released("a", 9))
    assert engine.step() == {"a": 4}
    assert engine.step() == {}
    engine.send(rows("a", [9, 10]))
    engine.send(released("a", 10, last=True))
    assert [engine.step() for _ in range(3)] == [{"a": 1}] * 3
    assert engine.read["a"] == engine.expected("a", 8, 10)
    assert engine.store.num_held == 0


def test_rows_that_come_before_their_request_are_kept(engine: Engine) -> None:
    engine.send(rows("a", range(5)))
    engine.send(released("a", 5, last=True))
    engine.add("a", 3)
    assert engine.step() == {"a": 5}
    assert [engine.step(), engine.step()] == [{"a": 1}] * 2
    assert engine.read["a"] == engine.expected("a", 3, 5)


def test_rows_that_were_computed_are_not_kept_and_repeats_of_them_are_dropped(
    engine: Engine,
) -> None:
    engine.add("a", 4)
    assert engine.step() == {}
    engine.send(released("a", 6))
    engine.send(rows("a", [*range(5), 2, 2]))
    assert engine.store.num_held == 5
    assert engine.step() == {"a": 6}
    assert engine.store.num_held == 0
    engine.send(rows("a", range(6)))  # upstream was preempted and began again
    assert engine.store.num_held == 1
    assert engine.step() == {"a": 1}
    assert engine.store.num_held == 0
    assert engine.read["a"] == engine.expected("a", 4, 7)


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_request_that_ends_early_leaves_no_row(engine: Engine, num_steps: int) -> None:
    engine.add("a", 4)
    engine.add("b", 4)
    for name in ("a", "b"):
        engine.send(rows(name, range(9)))
        engine.send(released(name, 6))
    for _ in range(num_steps):
        engine.step()
    held = engine.store.num_held
    engine.finish("a")
    assert engine.store.num_held == held // 2
    engine.send(released("b", 9, last=True))
    while len(engine.read["b"]) < 12:
        engine.step()
    assert engine.read["b"] == engine.expected("b", 4, 9)
    engine.finish("b")
    assert engine.store.num_held == 0


def test_what_waits_of_a_request_that_never_began_is_counted_until_it_is_cancelled(
    engine: Engine,
) -> None:
    engine.add("a", 4)
    engine.add("b", 4)
    engine.send(rows("a", range(5)))
    engine.send(rows("b", range(3)))
    engine.send(released("a", 5, last=True))
    assert engine.step() == {"a": 6}
    counts = {"rows": 1, "late_inputs": 2, "late_rows": 3}
    assert {what: engine.ledger.read()[what] for what in counts} == counts
    engine.finish("b")
    engine.finish("a")
    engine.step()
    assert not any(engine.ledger.read().values())


NAMES = ("a", "b", "c")
LENGTHS = st.tuples(st.integers(1, 14), st.integers(0, 14))  # of a prompt, and rows that follow
EVENTS = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(["add", "rows", "again", "release", "end", "step", "step"]),
    st.integers(0, 9),
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(LENGTHS, min_size=3, max_size=3),
    events=st.lists(EVENTS, max_size=60),
    data=st.data(),
)
def test_each_token_has_its_own_row_whatever_comes_when(
    lengths: list[tuple[int, int]],
    events: list[tuple[str, str, int]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Nobody else's and no earlier; in the end all were read once and nothing is left."""
    with running_engine(tmp_path_factory.mktemp("rows")) as engine:
        play(engine, dict(zip(NAMES, lengths, strict=True)), events, data)


def play(
    engine: Engine,
    lengths: dict[str, tuple[int, int]],
    events: list[tuple[str, str, int]],
    data: st.DataObject,
) -> None:
    num_sent, added = dict.fromkeys(NAMES, 0), set()
    totals = {name: sum(length) for name, length in lengths.items()}
    for name, event, number in events:
        num_prompt = lengths[name][0]
        if event == "add" and name not in added:
            engine.add(name, num_prompt)
            added.add(name)
        elif event == "rows":  # one more than will be released may come
            until = min(num_sent[name] + number, totals[name] + 1)
            sources = data.draw(st.permutations(range(num_sent[name], until)))
            engine.send(rows(name, sources))
            num_sent[name] = until
        elif event == "again":
            engine.send(rows(name, range(min(number, num_sent[name]))))
        elif event == "release":
            engine.send(released(name, min(totals[name], num_prompt + number)))
        elif event == "end":
            engine.send(released(name, totals[name], last=True))
        elif event == "step":
            engine.step()
    for name in NAMES:
        if name not in added:
            engine.add(name, lengths[name][0])
        engine.send(rows(name, range(num_sent[name], totals[name])))
        engine.send(released(name, totals[name], last=True))
    wanted = {name: totals[name] + 4 for name in NAMES}
    for _ in range(3 * MAX_LEN):
        if any(len(engine.read[name]) < wanted[name] for name in NAMES):
            engine.step()
    for name in NAMES:
        assert len(engine.read[name]) >= wanted[name]
        assert engine.read[name] == engine.expected(name, lengths[name][0], totals[name])
    assert engine.store.num_held == 0
    for name in NAMES:
        engine.finish(name)
    assert not engine.half._places.any()
