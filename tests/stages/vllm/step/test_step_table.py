"""Where a model finds its tokens' lines of a step."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omnistage.stages.vllm.step import step, step_table
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.step.step_table import StepTable


@pytest.fixture
def table() -> StepTable:
    """After a step whose three tokens are at slots 4, 5 and 9."""
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=4, max_num_seqs=2),
        model_config=SimpleNamespace(dtype=torch.float32),
        kv_transfer_config=None,
    )
    table = StepTable(config, torch.device("cpu"), HIDDEN_STATES)
    table.tok_of_slot = torch.zeros(12, dtype=torch.int64)
    write(table, [4, 5, 9])
    return table


def write(table: StepTable, slots: list[int]) -> None:
    """A step of tokens at these slots."""
    columns = torch.zeros(len(slots), table.columns.shape[1], dtype=torch.int32)
    columns[:, step.SLOT] = torch.tensor(slots)
    table.write(columns)


def lines(table: StepTable, slots: list[int], patch: pytest.MonkeyPatch) -> list[int]:
    """Of tokens that the runner has at these slots."""
    mapping = SimpleNamespace(slot_mapping={"layer": torch.tensor(slots)})
    patch.setattr(step_table, "is_forward_context_available", lambda: True)
    patch.setattr(step_table, "get_forward_context", lambda: mapping)
    found: list[int] = table.lines(len(slots) + 1).tolist()  # one of padding behind them
    return found


def test_tokens_have_their_lines_whatever_the_runners_order(
    table: StepTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines(table, [9, 4, 5], monkeypatch) == [3, 1, 2, 0]
    assert lines(table, [-1, 0, 5], monkeypatch) == [0, 0, 2, 0]


def test_a_token_where_the_step_names_none_has_no_line_of_another(
    table: StepTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots 4 and 5 had lines in the step before that are of other tokens now, and 9 one behind."""
    write(table, [10, 11])
    assert lines(table, [4, 5, 9, 10, 11, -1], monkeypatch) == [0, 0, 0, 1, 2, 0, 0]
    write(table, [9])
    assert lines(table, [10, 9, 11], monkeypatch) == [0, 1, 0, 0]
