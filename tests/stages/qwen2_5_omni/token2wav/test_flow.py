"""The flow's times, noise and steps, against transformers' solver."""

import math

import pytest
import torch
from support.models.token2wav import make_token2wav
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

from omnistage.stages.qwen2_5_omni.token2wav.flow import (
    Noise,
    Solution,
    evaluated,
    make_times,
    next_states,
)

F64 = torch.float64


def field(time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Something that depends on both and is not linear."""
    return torch.sin(3 * state + time) - state * time


def solved(start: torch.Tensor, dtype: torch.dtype) -> tuple[Solution, list[torch.Tensor]]:
    times = make_times(dtype)
    (solution,), states = [begun(start)], []
    while not solution.is_solved(times):
        states += next_states([solution], times)
        (solution,) = evaluated([solution], states[-1:], slopes([solution], states[-1:]), times)
    return solution, states


def begun(start: torch.Tensor) -> Solution:
    return Solution(0, len(start), start, start.new_zeros(36, 0, *start.shape[1:]), 2)


def slopes(solutions: list[Solution], states: list[torch.Tensor]) -> list[torch.Tensor]:
    times = make_times(states[0].dtype)
    return [
        field(times.values[times.of_evaluation[solution.num_evaluated]], state)
        for solution, state in zip(solutions, states, strict=True)
    ]


def test_it_solves_as_the_reference_does() -> None:
    start = torch.randn(3, 24, 80, dtype=F64, generator=torch.Generator().manual_seed(0))
    points = torch.linspace(0, 1, 10, dtype=F64)
    points = points - (torch.cos(torch.pi / 2 * points) - 1 + points)
    expected = RungeKutta4ODESolver(field, start).integrate(points)[-1]
    assert torch.equal(solved(start, F64)[0].start, expected)


def test_beside_others_at_any_evaluation_a_solution_is_the_same_bit_for_bit() -> None:
    """Each begins an evaluation later than the one before, and they are of different sizes."""
    times = make_times(torch.float32)
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(1 + size % 3, 24, 80, generator=generator) for size in range(7)]
    solutions: list[Solution] = []
    while not solutions or not solutions[-1].is_solved(times):
        solutions += [begun(start) for start in starts[len(solutions) :][:1]]
        rows = [row for row, one in enumerate(solutions) if not one.is_solved(times)]
        going = [solutions[row] for row in rows]
        states = next_states(going, times)
        for row, one in zip(
            rows, evaluated(going, states, slopes(going, states), times), strict=True
        ):
            solutions[row] = one
    for start, solution in zip(starts, solutions, strict=True):
        alone, _ = solved(start, torch.float32)
        assert torch.equal(solution.start, alone.start)
        assert torch.equal(solution.carried, alone.carried)


def test_36_evaluations_are_at_28_times() -> None:
    times = make_times(torch.float32)
    assert (times.num_evaluations, len(times.values), len(times.lengths)) == (36, 28, 9)
    assert times.of_evaluation[:6] == (0, 1, 2, 3, 3, 4)
    assert times.values[0] == 0
    assert times.values[-1] == pytest.approx(1)


def test_what_is_carried_is_what_entered_the_evaluations_of_the_last_kept_blocks() -> None:
    solution, states = solved(torch.randn(3, 24, 80), torch.float32)
    assert torch.equal(solution.carried, torch.stack(states)[:, 1:])


def test_noise_in_pieces_is_one_draw_of_the_reference_s() -> None:
    torch.manual_seed(7)
    expected = torch.randn(1, 106, 80)[0]
    noise = Noise(7, 24, 80)
    first, again, rest = noise.blocks(0, 72), noise.blocks(2, 24), noise.blocks(2, 58)
    assert torch.equal(first.flatten(0, 1), expected[:72])
    assert torch.equal(again[0], expected[48:72])
    assert torch.equal(rest.flatten(0, 1)[:58], expected[48:])
    assert not rest.flatten(0, 1)[58:].any()


def test_who_gives_no_seed_has_noise_of_its_own() -> None:
    one, other = (Noise(None, 24, 80).blocks(0, 24) for _ in range(2))
    assert not torch.equal(one, other)
    assert math.isclose(one.std(), 1, abs_tol=0.1)


def test_the_reference_has_so_many_evaluations() -> None:
    """The tables hold the times of its own defaults."""
    dit = make_token2wav(is_deep=False).code2wav_dit_model
    seen: list[float] = []
    embed = dit.time_embed.forward

    def watched(time: torch.Tensor) -> torch.Tensor:
        seen.append(float(time[0]))
        embedded: torch.Tensor = embed(time)
        return embedded

    dit.time_embed.forward = watched
    try:
        dit.sample(torch.zeros(1, 16), torch.zeros(1, 60, 80), torch.zeros(1, 2, dtype=torch.int64))
    finally:
        del dit.time_embed.forward
    times = make_times(torch.float32)
    assert seen == [float(times.values[place]) for place in times.of_evaluation]
