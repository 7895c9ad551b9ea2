"""A family's own declaration, from a request's options to the lines that its model reads."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.connectors.inprocess import InProcessConnector
from omnistage.stages.messages.edge import EDGE, Edge, Rows, StageTokens
from omnistage.stages.vllm.bridge.blocked import BlockedRows
from omnistage.stages.vllm.bridge.exporter import Exported
from omnistage.stages.vllm.bridge.late_inputs import LateInputs
from omnistage.stages.vllm.bridge.scheduler_half import SchedulerHalf
from omnistage.stages.vllm.bridge.worker_half import WorkerHalf
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.request_options import late_input_options
from omnistage.stages.vllm.step.step_schema import (
    Column,
    ColumnLayout,
    Export,
    RowInput,
    StepSchema,
)
from omnistage.stages.vllm.step.step_table import StepTable

# Neither the talker's widths nor its dtypes, and one position.
SINGER = StepSchema(
    columns=(
        Column("phoneme", fed_by="phonemes"),
        Column("pitch", "float32", width=2, blank=0.5, fed_by="pitches"),
        Column("tick", "int64", blank=-7),
        Column("position", counts=True),
    ),
    rows=RowInput(3, name="mood", dtype="float16"),
    export=Export("frames", "frame", "float32"),
)
NUM_PROMPT, MAX_LEN, BLOCK = 4, 16, 4
TICKS = np.array([1 << 40, -(1 << 40), 3, 4])
PITCHES = np.array([[0.25, -1.5], [2.0, 1e-3], [3.5, 4.5], [0.0, 0.0]], np.float32)
MOODS = np.array([[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]], np.float16)


def engine(schema: StepSchema, engine_id: str) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=2, max_num_batched_tokens=8, enable_chunked_prefill=True
        ),
        model_config=SimpleNamespace(max_model_len=MAX_LEN, dtype=torch.bfloat16),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        kv_transfer_config=SimpleNamespace(
            engine_id=engine_id, kv_connector_extra_config=BridgeConfig(schema).to_config()
        ),
    )


class Steps:
    """Both halves of one engine's bridge around a table, without the engine."""

    def __init__(self, directory: Path) -> None:
        self.connector = InProcessConnector(directory)
        self.connector.create("feed")
        self.feed: Sender = self.connector.sender("feed")
        config = engine(SINGER, "singer")
        receiver: Receiver[Edge] = self.connector.receiver("feed", EDGE)
        late = LateInputs([receiver], SINGER, torch.bfloat16, MAX_LEN, 60, 10)
        self.blocked = BlockedRows(directory / "blocked", 2)
        self.scheduler = SchedulerHalf(config, BLOCK, late, blocked=self.blocked)
        self.table = StepTable(config, torch.device("cpu"), SINGER)
        self.table.make_export(2)
        self.rows: list[torch.Tensor] = []
        self.table.on_hidden = self.rows.append
        self.exported: list[Exported] = []
        exporter: Any = SimpleNamespace(put=self.exported.append)
        self.worker = WorkerHalf(self.table, 8 * BLOCK, exporter)

    def send(self, message: StageTokens | Rows, last: bool = False, **values: Any) -> None:
        tensors = {name: Tensor.from_numpy(np.asarray(value)) for name, value in values.items()}
        self.feed.send(Chunk("song", message, 0, tensors, last))
        self.scheduler.collect()

    def run(self, **output: Any) -> torch.Tensor:
        """One step of vLLM's; the lines that its model reads, in order."""
        meta = self.scheduler.build(scheduled(**output))
        self.worker.before_forward(meta)
        assert meta.columns is not None
        slots = torch.from_numpy(meta.columns[:, step.SLOT]).long()
        assert self.table.tok_of_slot is not None
        lines = self.table.tok_of_slot[slots]
        assert self.table.export is not None
        self.table.export[lines] = lines[:, None] * torch.tensor([1.0, 0.5])
        self.worker.after_forward(meta)
        return self.table.columns[lines]

    def read(self, lines: torch.Tensor, name: str) -> Any:
        return self.table.read(lines, name).tolist()


def scheduled(new: Any = None, computed: int | None = None, count: int = 1) -> Any:
    cached = computed is not None
    return SimpleNamespace(
        finished_req_ids=set(),
        scheduled_new_reqs=[] if new is None else [new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=["song"] if cached else [],
            new_block_ids=[None] if cached else [],
            num_computed_tokens=[computed] if cached else [],
            resumed_req_ids=set(),
        ),
        num_scheduled_tokens={"song": count},
        total_num_scheduled_tokens=count,
    )


def song() -> Any:
    """Its last prompt position waits for the feed, the second and third for rows."""
    layout = ColumnLayout(SINGER.columns)
    inputs: dict[str, Any] = {
        "phoneme": [5, 6, 7, 0],
        "pitch": PITCHES,
        "tick": TICKS,
        "position": [10, 11, 12, 13],
    }
    options = late_input_options(
        "song",
        layout.pack(NUM_PROMPT, inputs),
        hidden_positions=np.array([1, 2], np.int32),
        hidden_sources=np.array([0, 4], np.int32),
        first_token_position=NUM_PROMPT - 1,
        position_delta=10,
        ends={"phonemes": (98, 99), "pitches": (-1.0, -2.0)},
    )
    return SimpleNamespace(
        req_id="song",
        request_id="song",
        prompt_token_ids=[0] * NUM_PROMPT,
        block_ids=([1, 3, 5],),
        num_computed_tokens=0,
        sampling_params=SimpleNamespace(extra_args=options.extra_args()),
    )


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Steps]:
    steps = Steps(tmp_path)
    yield steps
    steps.blocked.close()
    steps.feed.close()
    steps.scheduler.shutdown()
    steps.connector.destroy("feed")


def test_a_prompts_columns_and_rows_reach_the_model_as_they_were_given(steps: Steps) -> None:
    request = song()
    assert not steps.scheduler.can_run(request)
    steps.send(Rows(), mood=MOODS, positions=np.array([0, 4], np.int32))
    assert not steps.scheduler.can_run(request)
    steps.send(StageTokens(), phonemes=[8], pitches=np.array([[9.5, 0.125]], np.float32))
    assert steps.scheduler.can_run(request)
    lines = steps.run(new=request, count=NUM_PROMPT)
    assert steps.read(lines, "phoneme") == [[5], [6], [7], [8]]
    assert steps.read(lines, "pitch") == [*PITCHES[:3].tolist(), [9.5, 0.125]]
    assert steps.read(lines, "tick") == TICKS[:, None].tolist()
    assert steps.read(lines, "position") == [[10], [11], [12], [13]]
    assert lines[:, step.HIDDEN].tolist() == [0, 1, 2, 0]
    assert steps.rows[0].dtype == torch.float16
    assert steps.rows[0].tolist() == MOODS.tolist()
    assert lines[:, step.FRAME].tolist() == [-1] * NUM_PROMPT


def test_decode_steps_are_fed_count_on_end_and_leave_their_frames(steps: Steps) -> None:
    steps.send(Rows(), mood=MOODS, positions=np.array([0, 4], np.int32))
    pitches = np.array([[9.5, 0.125], [8.5, 0.25]], np.float32)
    steps.send(StageTokens(), last=True, phonemes=[8, 9], pitches=pitches)
    request = song()
    assert steps.scheduler.can_run(request)
    steps.run(new=request, count=NUM_PROMPT)
    found = [steps.run(computed=NUM_PROMPT + frame) for frame in range(3)]
    lines = torch.cat(found)
    assert steps.read(lines, "phoneme") == [[9], [98], [99]]
    assert steps.read(lines, "pitch") == [[8.5, 0.25], [-1.0, -1.0], [-2.0, -2.0]]
    assert steps.read(lines, "tick") == [[-7]] * 3
    assert steps.read(lines, "position") == [[14], [15], [16]]
    assert lines[:, step.FRAME].tolist() == [0, 1, 2]
    frames = [one for one in steps.exported if one.values is not None]
    assert [one.positions.tolist() for one in frames] == [[0], [1], [2]]
    for one in frames:
        assert one.values is not None
        assert one.values.dtype == torch.float32
        assert one.values.tolist() == [[1.0, 0.5]]


def test_a_decode_waits_for_the_credit_that_its_row_is_told_to_lack(steps: Steps) -> None:
    """By the exporter, which may be in another process; a prompt goes on."""
    steps.send(Rows(), mood=MOODS, positions=np.array([0, 4], np.int32))
    pitches = np.array([[9.5, 0.125]], np.float32)
    steps.send(StageTokens(), last=True, phonemes=[8], pitches=pitches)
    request = song()
    for row in range(3):
        steps.blocked[row] = True
    assert steps.scheduler.can_run(request)
    steps.run(new=request, count=NUM_PROMPT)
    row = steps.exported[0].started[0].row
    request.num_computed_tokens = NUM_PROMPT
    assert not steps.scheduler.can_run(request)
    steps.blocked[row] = False
    assert steps.scheduler.can_run(request)


def test_held_are_the_running_requests_that_cannot_run(steps: Steps) -> None:
    """A prompt of which a row or the token has not come, a decode without its token or credit."""
    request = song()
    assert steps.scheduler.held([request]) == [request]
    steps.send(Rows(), mood=MOODS, positions=np.array([0, 4], np.int32))
    steps.send(StageTokens(), phonemes=[8], pitches=np.array([[9.5, 0.125]], np.float32))
    assert steps.scheduler.held([request]) == []
    steps.run(new=request, count=NUM_PROMPT)
    request.num_computed_tokens = NUM_PROMPT
    assert steps.scheduler.held([request]) == [request]
    steps.send(StageTokens(), last=True, phonemes=[9], pitches=np.array([[8.5, 0.25]], np.float32))
    assert steps.scheduler.held([request]) == []
    steps.blocked[steps.exported[0].started[0].row] = True
    assert steps.scheduler.held([request]) == [request]


def test_a_gate_in_lockstep_does_not_sleep(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines of the other lanes would wait for it in their next layer."""
    began_at = time.monotonic()
    steps.scheduler.wait(0.05)
    assert time.monotonic() - began_at >= 0.05
    waits: list[float] = []
    monkeypatch.setattr(steps.scheduler._late, "wait", waits.append)
    monkeypatch.setattr(steps.scheduler, "_is_lockstep", True)
    steps.scheduler.wait(0.05)
    assert waits == []


def test_a_model_and_its_bridge_must_have_one_declaration() -> None:
    with pytest.raises(ValueError, match="the bridge was told"):
        StepTable(engine(SINGER, "other"), torch.device("cpu"), StepSchema())


def test_a_declaration_is_the_same_after_its_way_to_the_engine() -> None:
    config = BridgeConfig(SINGER)
    assert BridgeConfig.from_config(config.to_config()) == config
    assert config.late_inputs
    assert BridgeConfig(StepSchema(rows=RowInput(3))).late_inputs
    assert not BridgeConfig(StepSchema(export=Export("hidden", "row"))).late_inputs
