"""What ranks know of each other: which of them speaks, and whether they agree."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from omnistage.stages.vllm.models.shards import take_weight
from omnistage.stages.vllm.step import ranks
from omnistage.stages.vllm.step.ranks import CHECK_EVERY, RankCheck, is_lockstep, own_lane


def told_by(
    steps: list[torch.Tensor],
    others: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_first: bool = True,
) -> list[str]:
    """What the rank says that computed `steps`, beside another."""
    group = SimpleNamespace(world_size=2, cpu_group=None, is_first_rank=is_first)
    sums: list[int] = []

    def gather(into: list[int], own: int, group: Any) -> None:
        sums.append(own)
        into[:] = [own, other_sums.pop(0)] if other_sums else [own, 0]

    other_sums: list[int] = []
    monkeypatch.setattr(ranks, "get_tp_group", lambda: group)
    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    other = RankCheck()
    for values in others:
        other.look(values)
    other_sums, sums = sums, []
    caplog.clear()
    own = RankCheck()
    for values in steps:
        own.look(values)
    return [record.getMessage() for record in caplog.records]


def frames(num_steps: int) -> list[torch.Tensor]:
    return [torch.tensor([[step, 5, 7], [step + 1, 2, 3]]).int() for step in range(num_steps)]


def test_ranks_that_computed_the_same_are_said_to_agree_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = frames(3 * CHECK_EVERY)
    assert told_by(steps, steps, monkeypatch, caplog) == [
        f"2 ranks agree after {CHECK_EVERY} steps"
    ]
    assert told_by(steps, steps, monkeypatch, caplog, is_first=False) == []


@pytest.mark.parametrize("change", ["a code", "two rows in another order"])
def test_one_other_code_in_64_steps_is_told(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others = frames(CHECK_EVERY)
    if change == "a code":
        others[7] = others[7] + torch.tensor([[0, 0, 1], [0, 0, 0]]).int()
    else:
        others[7] = others[7].flip(0)
    (said,) = told_by(frames(CHECK_EVERY), others, monkeypatch, caplog)
    assert said.startswith("the ranks do not agree")
    assert caplog.records[0].levelno == logging.ERROR


def test_nothing_is_compared_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = frames(CHECK_EVERY - 1)
    assert told_by(steps, frames(1), monkeypatch, caplog) == []


def test_a_lane_is_known_where_vllm_hides_their_number() -> None:
    dense = SimpleNamespace(data_parallel_index=1, data_parallel_size=1)
    config: Any = SimpleNamespace(parallel_config=dense)
    assert own_lane(config) == 1
    assert not is_lockstep(config)
    experts = SimpleNamespace(data_parallel_index=1, data_parallel_size=2)
    config = SimpleNamespace(parallel_config=experts)
    assert is_lockstep(config)


def test_a_module_of_vllms_takes_its_shard_of_a_weight_and_any_other_all_of_it() -> None:
    whole = torch.arange(8.0).reshape(4, 2)
    shard: Any = nn.Parameter(torch.zeros(2, 2))
    shard.weight_loader = lambda parameter, weight: parameter.data.copy_(weight[2:])
    take_weight(shard, whole)
    assert shard.tolist() == whole[2:].tolist()
    longer = nn.Parameter(torch.ones(5, 2))
    take_weight(longer, whole)
    assert longer[:4].tolist() == whole.tolist()
    assert longer[4].tolist() == [1, 1]
