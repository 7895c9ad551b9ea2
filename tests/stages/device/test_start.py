"""What a stage says before it loads, and when it ends there."""

import logging

import pytest
import torch

from omnistage.stages.device.memory import GIB
from omnistage.stages.device.start import DoesNotFit, Start

CPU, FLOAT = torch.device("cpu"), torch.float32


def start(free: int | None, seed: int | None = None) -> Start:
    wanted = {"weights": 3 * GIB // 2, "slots": GIB}
    return Start("code2wav", CPU, FLOAT, free, "lower num_slots", wanted, seed)


@pytest.mark.parametrize(
    ("free", "seed", "said"),
    [
        (
            5 * GIB // 2,
            None,
            "no seed; at least 2.50 GiB wanted (weights 1.50, slots 1.00), 2.50 G",
        ),
        (None, 7, "seed 7; at least 2.50 GiB wanted (weights 1.50, slots 1.00), unknown free"),
    ],
)
def test_one_line_says_where_it_goes_what_it_wants_and_what_is_free(
    free: int | None, seed: int | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start(free, seed).check()
    (line,) = caplog.messages
    assert line.startswith(f"stage code2wav: cpu, float32, {said}")


def test_a_stage_that_cannot_fit_is_refused_in_one_sentence() -> None:
    with pytest.raises(DoesNotFit) as caught:
        start(5 * GIB // 2 - 1).check()
    assert str(caught.value) == (
        "stage code2wav does not fit on cpu: at least 2.50 GiB wanted (weights 1.50, slots 1.00), "
        "2.50 GiB free; lower num_slots"
    )


def test_what_takes_turns_is_told_and_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    start(1).check(takes_turns=True)
    (line,) = caplog.messages
    assert line.endswith("0.00 GiB free, not all at once")
