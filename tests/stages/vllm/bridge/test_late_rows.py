"""Rows without a known end, from their channel to the lines and rows that the model reads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.stages.messages.edge import EDGE, Rows, RowsReleased, StageTokens
from omnistage.stages.vllm.bridge.late_inputs import LateInputs
from omnistage.stages.vllm.bridge.late_rows import ALL
from omnistage.stages.vllm.bridge.request_inputs import RequestInputs
from omnistage.stages.vllm.bridge.scheduler_half import SchedulerHalf
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step.request_options import RequestOptions, late_input_options
from omnistage.stages.vllm.step.step import HIDDEN, NUM_OWN, StepMeta
from omnistage.stages.vllm.step.step_schema import Column, ColumnLayout, RowInput, StepSchema
from omnistage.stages.worker.ledger import Ledger

SCHEMA = StepSchema(
    (Column("text", after_rows=True), Column("position", counts=True)), RowInput(2, dtype="int32")
)
LAYOUT = ColumnLayout(SCHEMA.columns)
MAX_LEN, BLOCK, SEATS, LEAST = 48, 4, 3, 4
VOICE, END, PAD = 700, 701, 702


def request_options(name: str, num_prompt: int) -> RequestOptions:
    """Upstream's row s goes to position s of its prompt, behind a voice's token to s + 1."""
    text = [-1] * num_prompt + [VOICE, -1]
    positions = np.arange(num_prompt, dtype=np.int32)
    return late_input_options(
        name,
        LAYOUT.pack(len(text), {"text": text, "position": np.arange(len(text)) + 10}),
        hidden_positions=positions,
        hidden_sources=positions,
        following=(num_prompt, num_prompt + 1),
        position_delta=10,
        ends={"text": (END, PAD)},
    )


def opened(num_prompt: int) -> RequestInputs:
    store = RowStore(RowInput(2), torch.int32)
    late = request_options("a", num_prompt).late
    assert late is not None
    return RequestInputs("a", late, LAYOUT, MAX_LEN, store)


def rows(name: str, sources: Sequence[int]) -> Chunk[Any]:
    """Each row says whose it is and which."""
    values = np.array([[ord(name[-1]), source] for source in sources], np.int32).reshape(-1, 2)
    positions = Tensor.from_numpy(np.array(sources, np.int32))
    return Chunk(name, Rows(), 0, {"hidden": Tensor.from_numpy(values), "positions": positions})


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


class Engine:
    """The scheduler half behind a channel, asked and told as vLLM's scheduler does.

    It remembers what each token that it took was computed from.
    """

    def __init__(self, directory: Path) -> None:
        self.connector = InProcessConnector(directory)
        self.connector.create("rows")
        self.sender = self.connector.sender("rows")
        late = LateInputs(
            [self.connector.receiver("rows", EDGE)], SCHEMA, torch.float32, MAX_LEN, 60, 10
        )
        config: Any = SimpleNamespace(
            scheduler_config=SimpleNamespace(
                max_num_seqs=SEATS, max_num_batched_tokens=2 * MAX_LEN, enable_chunked_prefill=True
            ),
            model_config=SimpleNamespace(max_model_len=MAX_LEN),
            kv_transfer_config=SimpleNamespace(engine_id="rows"),
            parallel_config=SimpleNamespace(data_parallel_size=1),
        )
        self.ledger = Ledger(directory / "held")
        self.half = SchedulerHalf(config, BLOCK, late, self.ledger, LEAST)
        assert late.store is not None
        self.store = late.store
        self.running: dict[str, Any] = {}
        self.finished: set[str] = set()
        self.new: set[str] = set()
        self.read: dict[str, list[tuple[int, int, int]]] = {}  # whose row, which, and the text

    def add(self, name: str, num_prompt: int) -> None:
        params = SimpleNamespace(extra_args=request_options(name, num_prompt).extra_args())
        self.running[name] = SimpleNamespace(
            request_id=name,
            req_id=name,
            sampling_params=params,
            num_computed_tokens=0,
            num_prompt_tokens=num_prompt + 2,
            prompt_token_ids=[0] * (num_prompt + 2),
            block_ids=(list(range(1, MAX_LEN // BLOCK + 1)),),
        )
        self.read[name] = []
        self.new.add(name)
        self.half.expect(self.running[name])

    def finish(self, name: str) -> None:
        del self.running[name]
        self.half.forget(name)
        self.finished.add(name)
        self.new.discard(name)

    def send(self, chunk: Chunk[Any]) -> None:
        self.sender.send(chunk)
        self.half.collect()

    def step(self) -> dict[str, int]:
        """One step: prompts whole or in part, and decodes, of all that can run."""
        part = self.half.choose_part(self.running.values(), (), True)
        counts = {}
        for name, request in self.running.items():
            left = request.num_prompt_tokens - request.num_computed_tokens
            if not self.half.can_run(request) or request.num_computed_tokens == MAX_LEN:
                continue
            is_part = part is not None and part.request_id == name
            counts[name] = part.num_tokens if is_part and part else max(left, 1)
        meta = self.half.build(self._output(counts))
        self._remember(meta, counts)
        return counts

    def _output(self, counts: dict[str, int]) -> Any:
        cached = [name for name in counts if name not in self.new]
        output = SimpleNamespace(
            finished_req_ids=self.finished,
            scheduled_new_reqs=[self.running[name] for name in counts if name in self.new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=cached,
                new_block_ids=[None] * len(cached),
                num_computed_tokens=[self.running[name].num_computed_tokens for name in cached],
                resumed_req_ids=set(),
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
        )
        self.finished = set()
        return output

    def _remember(self, meta: StepMeta, counts: dict[str, int]) -> None:
        line = 0
        for name, count in counts.items():
            assert meta.columns is not None
            for one in meta.columns[line : line + count]:
                whose, which = 0, -1
                if one[HIDDEN]:
                    assert meta.hidden is not None
                    whose, which = meta.hidden[one[HIDDEN] - 1].view(np.int32).tolist()
                self.read[name].append((whose, which, int(one[NUM_OWN])))
            line += count
            self.running[name].num_computed_tokens += count
            self.new.discard(name)

    def expected(self, name: str, num_prompt: int, num_rows: int) -> list[tuple[int, int, int]]:
        """What a request's tokens are made of whose upstream had so many rows."""
        letter = ord(name[-1])
        prompt = [(letter, source, -1) for source in range(num_prompt)]
        reply = [(letter, source, -1) for source in range(num_prompt, num_rows)]
        ends = [(0, -1, END), *[(0, -1, PAD)] * MAX_LEN]
        return [*prompt, (0, -1, VOICE), *reply, *ends][: len(self.read[name])]


@contextmanager
def running_engine(directory: Path) -> Iterator[Engine]:
    engine = Engine(directory)
    try:
        yield engine
    finally:
        engine.sender.close()
        engine.half.shutdown()
        engine.connector.destroy("rows")
        engine.ledger.close()


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
