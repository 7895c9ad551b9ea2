"""Late inputs: what is available when, and that nothing is made up."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.bridge.fed_rows import (
    END,
    MAX_LEN,
    PAD,
    SCHEMA,
    Clock,
    Feed,
    opened,
    options,
    rows,
    tokens,
)

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.stages.messages.edge import EDGE, Edge, Rows, StageTokens
from omnistage.stages.vllm.bridge.late_inputs import EARLY_IDLE_S, EARLY_S, LateInputs
from omnistage.stages.vllm.bridge.late_rows import ALL
from omnistage.stages.vllm.bridge.request_inputs import RequestInputs
from omnistage.stages.vllm.step.request_options import (
    RequestOptions,
    late_input_options,
)
from omnistage.stages.vllm.step.step_schema import Column, ColumnLayout

HALVES = Tensor.from_numpy(np.zeros((1, 4), np.float16))


def test_the_last_prompt_position_waits_for_the_first_token() -> None:
    inputs = opened()
    assert inputs.available == 5
    inputs.add(tokens(7))
    assert inputs.available == 6
    assert inputs.table[5, 0] == 7


def test_after_the_last_token_come_the_end_and_pads_for_ever() -> None:
    inputs = opened()
    inputs.add(tokens(7, 8))
    inputs.add(tokens(last=True))
    assert inputs.available == ALL
    assert inputs.table[5:9, 0].tolist() == [7, 8, END, PAD]
    assert inputs.table[-1, 0] == PAD


def test_decode_positions_count_on_from_the_prompts() -> None:
    inputs = opened()
    assert inputs.table[6:9, 2:].tolist() == [[9] * 3, [10] * 3, [11] * 3]


def test_a_hidden_row_that_has_not_come_is_waited_for() -> None:
    inputs = opened(hidden=(1, 2, 4), fed={"tokens": (7,)}, complete=True)
    assert inputs.available == 1
    inputs.add(rows(101))
    assert inputs.available == 2
    inputs.add(rows(104))
    assert inputs.available == 2
    inputs.add(rows(101, 102))  # a repeat after a preemption
    assert inputs.available == ALL


def test_rows_that_nobody_asked_for_are_ignored() -> None:
    inputs = opened(hidden=(1,))
    inputs.add(rows(100, 102, 300))
    assert inputs.available == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def feed(tmp_path: Path, clock: Clock) -> Iterator[Feed]:
    feed = Feed(tmp_path)
    yield feed
    feed.sender.close()
    feed.late.shutdown()
    InProcessConnector(tmp_path).destroy("feed")


def test_chunks_that_come_before_their_request_are_kept(feed: Feed) -> None:
    feed.send(tokens(7))
    assert feed.late.open("a", options()).available == 6


def test_chunks_of_a_request_that_queues_are_kept_however_long(feed: Feed, clock: Clock) -> None:
    feed.late.expect("a")
    feed.send(tokens(7))
    clock.now += 1000
    assert feed.late.overdue() == []
    assert feed.late.open("a", options()).available == 6


def test_chunks_of_a_request_that_never_comes_are_dropped(feed: Feed, clock: Clock) -> None:
    feed.send(tokens(7))
    clock.now += EARLY_S + 1
    feed.late.overdue()
    assert feed.late.open("a", options()).available == 5


def test_chunks_are_kept_while_an_engine_obeys_a_long_command_before_it_gets_their_request(
    feed: Feed, clock: Clock
) -> None:
    feed.send(tokens(7))
    clock.now += 600
    feed.late._take_late(has_come=False)
    feed.late.expect("a")  # it is in the engine's queue behind the command
    assert feed.late.overdue() == []
    assert feed.late.open("a", options()).available == 6


def test_chunks_of_a_request_that_never_comes_to_an_idle_engine_are_dropped(
    feed: Feed, clock: Clock
) -> None:
    feed.send(tokens(7))
    clock.now += EARLY_IDLE_S + 1
    feed.late._take_late(has_come=False)
    assert feed.late.open("a", options()).available == 5


def overdue_after(seconds: int, feed: Feed, clock: Clock) -> list[str]:
    """Requests that are overdue then, in an engine that steps each second."""
    for _ in range(seconds):
        clock.now += 1
        found = feed.late.overdue()
    return found


def test_a_request_is_overdue_when_its_first_or_next_input_is_late(
    feed: Feed, clock: Clock
) -> None:
    feed.late.open("a", options())
    assert overdue_after(59, feed, clock) == []
    feed.send(tokens(7))
    assert overdue_after(9, feed, clock) == []
    assert overdue_after(2, feed, clock) == ["a"]
    feed.send(tokens(last=True))
    assert overdue_after(1000, feed, clock) == []


def test_no_input_is_late_for_a_pause_of_the_engine(feed: Feed, clock: Clock) -> None:
    feed.late.open("a", options())
    assert overdue_after(50, feed, clock) == []
    clock.now += 1000
    assert feed.late.overdue() == []
    assert overdue_after(10, feed, clock) == []
    assert overdue_after(1, feed, clock) == ["a"]


def test_a_missing_hidden_row_makes_a_request_overdue(feed: Feed, clock: Clock) -> None:
    feed.late.open("a", options(hidden=(1,)))
    feed.send(tokens(7, last=True))
    assert overdue_after(11, feed, clock) == ["a"]
    feed.late.close("a")
    assert feed.late.overdue() == []


@given(st.lists(st.integers(0, 3), max_size=12))
def test_any_split_of_the_tokens_gives_the_same_table(sizes: list[int]) -> None:
    whole = opened()
    parts = opened()
    values = list(range(1, sum(sizes) + 1))
    whole.add(tokens(*values, last=True))
    for size in sizes:
        parts.add(tokens(*values[:size]))
        values = values[size:]
    parts.add(tokens(last=True))
    assert np.array_equal(whole.table, parts.table)


def test_what_its_family_does_not_declare_ends_a_request_and_no_other(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    """Its next chunks are not put where the refused ones belong."""
    inputs = feed.late.open("a", options(hidden=(1,)))
    wrong: Chunk[Edge] = Chunk("a", Rows(), 0, {**rows(101).tensors, "hidden": HALVES})
    feed.late.open("b", options())
    feed.send(tokens(7), wrong, rows(101), tokens(8, last=True))
    assert inputs.available == 1
    assert feed.late.overdue() == ["a"]
    assert "float16" in caplog.text
    assert "declared are float32 [4]" in caplog.text


def test_a_wide_column_is_fed_from_a_table_that_is_known_at_the_start() -> None:
    layout = ColumnLayout((Column("place", width=3, blank=0, fed_by="place"),))
    table: list[list[float]] = [[5, 5, 5], [5, 5, 6], [7, 8, 9]]
    asked = late_input_options(
        "a",
        layout.pack(2, {"place": np.array([[0, 0, 0], [1, 1, 1]])}),
        first_token_position=2,
        ends={"place": (0, 0)},
        fed={"place": table},
        complete=True,
    )
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=RequestOptions)
    assert sent.late is not None
    inputs = RequestInputs("a", sent.late, layout, MAX_LEN)
    assert inputs.has_all
    places = layout.of_inputs(inputs.table, "place")
    assert places[:6].tolist() == [[0, 0, 0], [1, 1, 1], *table, [0, 0, 0]]


def test_columns_that_come_together_come_in_equal_numbers() -> None:
    layout = ColumnLayout(
        (Column("text", fed_by="tokens"), Column("pitch", "float32", fed_by="pitch"))
    )
    ends = {"tokens": (END, PAD), "pitch": (0, 0)}
    asked = late_input_options("a", layout.pack(1, {}), first_token_position=1, ends=ends)
    assert asked.late is not None
    inputs = RequestInputs("a", asked.late, layout, MAX_LEN)
    chunk = tokens(1, 2)
    with pytest.raises(ValueError, match="different lengths"):
        inputs.add(Chunk("a", StageTokens(), 0, {**chunk.tensors, "pitch": HALVES}))
    with pytest.raises(KeyError, match="pitch"):
        inputs.add(chunk)


def test_what_comes_for_a_request_that_has_ended_is_taken_though_no_engine_steps(
    tmp_path: Path,
) -> None:
    """Speech may end before the text that it is made of: its sender gets all of its credit back."""
    connector = ShmConnector(tmp_path, ShmOptions(credit=2))
    connector.create("feed")
    sender = connector.sender("feed")
    late = LateInputs([connector.receiver("feed", EDGE)], SCHEMA, torch.float32, MAX_LEN, 60, 10)
    try:
        late.open("a", options())
        late.close("a")
        for _ in range(5):
            sender.send(tokens(7))
        sender.send(tokens(last=True))
        deadline = time.monotonic() + 600
        while sender.flush() or sender.num_requests:
            assert time.monotonic() < deadline, "it keeps its credit"
            time.sleep(0.01)
        late.expect("a")  # a request of this name may come again
        assert late.open("a", options()).available == 5
    finally:
        sender.close()
        late.shutdown()


def test_a_wait_ends_with_what_comes_at_any_receiver(tmp_path: Path) -> None:
    connector = InProcessConnector(tmp_path)
    addresses = ("first", "second", "third")
    for address in addresses:
        connector.create(address)
    receivers: list[Receiver[Edge]] = [connector.receiver(one, EDGE) for one in addresses]
    late = LateInputs(receivers, SCHEMA, torch.float32, MAX_LEN, 60, 10)
    inputs = late.open("a", options())
    try:
        for address in addresses:
            late.collect()
            began_at = time.monotonic()
            late.wait(0.05)
            assert time.monotonic() - began_at >= 0.05  # nothing is there
            sender = connector.sender(address)
            timer = threading.Timer(0.05, sender.send, [tokens(7)])
            timer.start()
            late.wait(600)
            timer.join()
            before = inputs.available
            late.collect()
            assert inputs.available == before + 1
            sender.close()
    finally:
        late.shutdown()
        for address in addresses:
            connector.destroy(address)
