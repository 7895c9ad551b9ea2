"""Gathers and scatters of lines between lanes, each with as many as it has."""

from typing import Any

import pytest
import torch

from omnistage.stages.vllm.workers.lane_communicator import LaneCommunicator

SIZES = [3, 1]


def rank(number: int) -> LaneCommunicator:
    """One of two, without a group."""
    made = LaneCommunicator.__new__(LaneCommunicator)
    made.world_size, made.rank_in_group, made.device_group = 2, number, None
    return made


def lines(number: int) -> torch.Tensor:
    return torch.arange(SIZES[number] * 2.0).reshape(-1, 2) + 100 * number


def test_every_lane_gets_the_lines_of_all_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[torch.Tensor] = []

    def gather(into: list[torch.Tensor], own: torch.Tensor, group: Any) -> None:
        sent.append(own)
        assert own.shape == into[0].shape == (max(SIZES), 2)
        for place, number in zip(into, range(2), strict=True):
            place.fill_(-1)
            place[: SIZES[number]] = lines(number)

    monkeypatch.setattr("torch.distributed.all_gather", gather)
    expected = torch.cat([lines(0), lines(1)])
    for number in range(2):
        gathered = rank(number).all_gatherv(lines(number), 0, SIZES)
        assert isinstance(gathered, torch.Tensor)
        assert torch.equal(gathered, expected)
        both = rank(number).all_gatherv([lines(number), lines(number)], 0, SIZES)
        assert [one.tolist() for one in both] == [expected.tolist()] * 2
    assert [one[: len(lines(1))].tolist() for one in sent[3:4]] == [lines(1).tolist()]


def test_every_lane_gets_the_sum_of_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.cat([lines(0), lines(1)])
    other = torch.ones_like(total)

    def reduce(own: torch.Tensor, group: Any) -> None:
        own += other

    monkeypatch.setattr("torch.distributed.all_reduce", reduce)
    given = total.clone()
    for number, own in enumerate((slice(0, 3), slice(3, 4))):
        scattered = rank(number).reduce_scatterv(given, 0, SIZES)
        assert scattered.tolist() == (total + 1)[own].tolist()
    assert torch.equal(given, total)  # what was given is as it was
