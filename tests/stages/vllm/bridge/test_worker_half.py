"""What the worker half does in each of vLLM's two calls of a step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.stages.vllm.bridge.exporter import Exported
from omnistage.stages.vllm.bridge.worker_half import WorkerHalf
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.step import Finished, Replay, StartedRequest, StepMeta
from omnistage.stages.vllm.step.step_schema import Export, StepSchema
from omnistage.stages.vllm.step.step_table import StepTable

NUM_CODES = 3


class Steps:
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.exported: list[Exported] = []

    def put(self, exported: Exported) -> None:
        self.exported.append(exported)


@pytest.fixture
def table() -> StepTable:
    scheduler = SimpleNamespace(max_num_batched_tokens=4, max_num_seqs=2)
    model = SimpleNamespace(dtype=torch.float32)
    config: Any = SimpleNamespace(
        scheduler_config=scheduler, model_config=model, kv_transfer_config=None
    )
    schema = StepSchema(export=Export("codes", "frame", "int32"))
    table = StepTable(config, torch.device("cpu"), schema)
    table.make_export(NUM_CODES)
    return table


def test_a_step_without_tokens_is_exported_before_the_forward(table: StepTable) -> None:
    steps: Any = Steps()
    worker = WorkerHalf(table, 8, steps)
    meta = StepMeta(finished=[Finished(1, "a")])
    worker.before_forward(meta)
    assert [list(exported.finished) for exported in steps.exported] == [meta.finished]
    worker.after_forward(meta)
    assert len(steps.exported) == 1


def test_a_step_with_tokens_is_exported_after_the_forward(table: StepTable) -> None:
    steps: Any = Steps()
    worker = WorkerHalf(table, 8, steps)
    columns = np.zeros((2, step.NUM_OWN), np.int32)
    columns[:, step.SLOT], columns[:, step.ROW], columns[:, step.FRAME] = [5, 6], [1, 2], [-1, 7]
    meta = StepMeta(columns=columns, num_decodes=1, finished=[Finished(2, "b")])
    worker.before_forward(meta)
    assert not steps.exported
    assert table.export is not None
    table.export[2] = torch.tensor([4, 5, 6])
    worker.after_forward(meta)
    (exported,) = steps.exported
    assert exported.rows.tolist() == [2]
    assert exported.positions.tolist() == [7]
    assert exported.values.tolist() == [[4, 5, 6]]
    assert list(exported.finished) == meta.finished


def test_what_decodes_alone_leave_stays_as_it_is_when_the_next_step_writes_the_table(
    table: StepTable,
) -> None:
    steps: Any = Steps()
    worker = WorkerHalf(table, 8, steps)
    columns = np.zeros((2, step.NUM_OWN), np.int32)
    columns[:, step.SLOT], columns[:, step.ROW], columns[:, step.FRAME] = [5, 6], [2, 1], [7, 0]
    meta = StepMeta(columns=columns, num_decodes=2)
    worker.before_forward(meta)
    assert table.export is not None
    table.export[1:3] = torch.tensor([[1, 2, 3], [4, 5, 6]])
    worker.after_forward(meta)
    table.export.zero_()
    (exported,) = steps.exported
    assert exported.rows.tolist() == [2, 1]
    assert exported.positions.tolist() == [7, 0]
    assert exported.values.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_kept_rows_do_not_wait_for_the_forward_and_come_after_the_streams_open(
    table: StepTable,
) -> None:
    steps: Any = Steps()
    worker = WorkerHalf(table, 8, steps)
    columns = np.zeros((2, step.NUM_OWN), np.int32)
    columns[:, step.SLOT], columns[:, step.ROW], columns[:, step.FRAME] = [5, 6], [1, 1], -1
    replay = Replay(1, np.array([0], np.int32), np.array([3]))
    meta = StepMeta(
        columns=columns,
        export=np.array([1]),
        export_positions=np.array([9], np.int32),
        export_places=np.array([4]),
        replays=[replay],
        started=[StartedRequest(1, "a", None)],
        finished=[Finished(1, "b")],
    )
    worker.before_forward(meta)
    (early,) = steps.exported
    assert (list(early.started), list(early.finished)) == (meta.started, meta.finished)
    assert (early.replays, early.values) == ([replay], None)
    worker.after_forward(meta)
    late = steps.exported[1]
    assert not any((late.started, late.finished, late.replays))
    assert (late.positions.tolist(), late.places.tolist()) == ([9], [4])


@pytest.mark.parametrize("has_replays", [False, True])
def test_which_drafts_were_accepted_is_told_once_with_or_without_tokens_and_kept_rows(
    has_replays: bool, table: StepTable
) -> None:
    steps: Any = Steps()
    worker = WorkerHalf(table, 8, steps)
    accepted = np.array([0, 2])
    meta = StepMeta(accepted=accepted)
    if has_replays:
        columns = np.zeros((1, step.NUM_OWN), np.int32)
        columns[:, step.FRAME] = -1
        replay = Replay(1, np.array([0], np.int32), np.array([3]))
        meta = StepMeta(columns=columns, accepted=accepted, replays=[replay])
    worker.before_forward(meta)
    worker.after_forward(meta)
    (exported,) = steps.exported
    assert exported.accepted is accepted


def test_the_rows_of_drafts_are_the_last_ones_and_are_said_to_wait(table: StepTable) -> None:
    steps: Any = Steps()
    worker = WorkerHalf(table, 8, steps)
    columns = np.zeros((3, step.NUM_OWN), np.int32)
    columns[:, step.SLOT], columns[:, step.ROW], columns[:, step.FRAME] = [5, 6, 7], [1, 1, 2], -1
    meta = StepMeta(
        columns=columns,
        export=np.array([0, 2, 1]),
        export_positions=np.array([9, 4, 10], np.int32),
        num_held=1,
    )
    worker.before_forward(meta)
    assert table.export is not None
    table.export[1:4] = torch.tensor([[1], [2], [3]])
    worker.after_forward(meta)
    (exported,) = steps.exported
    assert exported.num_held == 1
    assert exported.values[:, 0].tolist() == [1, 3, 2]
    assert (exported.rows.tolist(), exported.positions.tolist()) == ([1, 2, 1], [9, 4, 10])
