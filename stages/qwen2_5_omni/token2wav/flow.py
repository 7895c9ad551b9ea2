"""The flow's differential equation: its times, its noise, and windows' way through them.

Runge and Kutta's method of fourth order, in the form of the 3/8 rule: four evaluations a step. The
next evaluations of several windows are computed together, those at the same place of their steps
as one tensor: element by element, so that none depends on the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

NUM_POINTS = 10
STAGES = 4


@dataclass(frozen=True, slots=True)
class Times:
    """`values`: the distinct times at which the model is evaluated, each with its own embedding.

    `of_evaluation`: which of them each evaluation has; `lengths` [steps]: of each step.
    """

    values: torch.Tensor
    of_evaluation: tuple[int, ...]
    lengths: torch.Tensor

    @property
    def num_evaluations(self) -> int:
        """Returns the evaluations of a whole solution."""
        return len(self.of_evaluation)

    def on(self, device: torch.device) -> "Times":
        """The same there."""
        return replace(self, values=self.values.to(device), lengths=self.lengths.to(device))


def make_times(dtype: torch.dtype, num_points: int = NUM_POINTS) -> Times:
    """The reference's: denser near the noise."""
    points = torch.linspace(0, 1, num_points, dtype=dtype)
    points = points - (torch.cos(torch.pi / 2 * points) - 1 + points)
    lengths = points.diff()
    times: list[torch.Tensor] = []
    for start, end, length in zip(points[:-1], points[1:], lengths, strict=True):
        times += [start, start + length * (1 / 3), start + length * (2 / 3), end]
    places = {value: place for place, value in enumerate(dict.fromkeys(map(float, times)))}
    values = torch.tensor([*places], dtype=dtype)
    return Times(values, tuple(places[float(time)] for time in times), lengths)


class Noise:
    """The noise that an answer begins with: normal numbers of its seed, drawn a block at a time.

    They are always drawn on the CPU, where pieces of whole codes equal one draw: elsewhere numbers
    depend on how many are drawn at once.
    """

    def __init__(self, seed: int | None, block_frames: int, mel_dim: int) -> None:
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self._shape = block_frames, mel_dim
        self._blocks: dict[int, torch.Tensor] = {}
        self._num_drawn = 0

    def blocks(self, first: int, num_frames: int) -> torch.Tensor:
        """So many frames from a block on, as float32 [blocks, block_frames, mel_dim].

        They are asked for in order, but may be asked for again. Missing frames of the last block
        are zeros.
        """
        for block in [block for block in self._blocks if block < first]:
            del self._blocks[block]
        block_frames, mel_dim = self._shape
        count = -(-num_frames // block_frames)
        while self._num_drawn < first + count:
            missing = first * block_frames + num_frames - self._num_drawn * block_frames
            drawn = torch.zeros(self._shape)
            size = min(missing, block_frames), mel_dim
            drawn[: size[0]] = torch.randn(size, generator=self._generator)
            self._blocks[self._num_drawn] = drawn
            self._num_drawn += 1
        return torch.stack([self._blocks[first + index] for index in range(count)])


@dataclass(frozen=True, slots=True)
class Solution:
    """The new blocks of one window, some evaluations after their noise.

    `num_kept`: those that are not solved again with more ahead. `start`: their states at the
    beginning of the step, `slopes`: its evaluations so far. `past`: states of the blocks before
    them at each evaluation, [evaluations, blocks, frames, mel]. `entered`: the same of the last
    kept ones, for the window that follows.
    """

    first: int
    num_kept: int
    start: torch.Tensor
    past: torch.Tensor
    num_carried: int
    slopes: tuple[torch.Tensor, ...] = ()
    entered: tuple[torch.Tensor, ...] = ()

    @property
    def num_evaluated(self) -> int:
        """Evaluations so far."""
        return len(self.entered)

    @property
    def num_new(self) -> int:
        """Blocks that are solved."""
        return len(self.start)

    def is_solved(self, times: Times) -> bool:
        """Returns whether `start` is the mel spectrogram."""
        return self.num_evaluated == times.num_evaluations

    @property
    def carried(self) -> torch.Tensor:
        """The `past` of the window that follows."""
        states = torch.cat([self.past, torch.stack(self.entered)], 1)
        return states[:, max(states.shape[1] - self.num_carried, 0) :]


def next_states(solutions: Sequence[Solution], times: Times) -> list[torch.Tensor]:
    """Returns what enters the next evaluation of each, [blocks, frames, mel]."""
    states = [solution.start for solution in solutions]
    for stage in range(1, STAGES):
        rows = [row for row, one in enumerate(solutions) if len(one.slopes) == stage]
        if rows:
            joint = _joined([solutions[row] for row in rows], times)
            for row, state in zip(rows, joint.split(joint.state()), strict=True):
                states[row] = state
    return states


def evaluated(
    solutions: Sequence[Solution],
    states: Sequence[torch.Tensor],
    velocities: Sequence[torch.Tensor],
    times: Times,
) -> list[Solution]:
    """Each solution with the evaluation of its state.

    They keep the velocities as they are given, and of the states copies of what they carry.
    """
    parts = [
        state[max(solution.num_kept - solution.num_carried, 0) : solution.num_kept]
        for solution, state in zip(solutions, states, strict=True)
    ]
    carried = torch.cat(parts).split([len(part) for part in parts])
    after = [
        replace(solution, slopes=(*solution.slopes, slope), entered=(*solution.entered, part))
        for solution, slope, part in zip(solutions, velocities, carried, strict=True)
    ]
    rows = [row for row, solution in enumerate(after) if len(solution.slopes) == STAGES]
    if rows:
        joint = _joined([after[row] for row in rows], times)
        for row, start in zip(rows, joint.split(joint.end()), strict=True):
            after[row] = replace(after[row], start=start, slopes=())
    return after


@dataclass(frozen=True, slots=True)
class Joint:
    """Solutions with as many slopes, all blocks of all as one tensor; `lengths` [blocks, 1, 1]."""

    sizes: list[int]
    start: torch.Tensor
    slopes: tuple[torch.Tensor, ...]
    lengths: torch.Tensor

    def state(self) -> torch.Tensor:
        """Returns what enters the next evaluation."""
        match self.slopes:
            case (one,):
                return self.start + self.lengths * one * (1 / 3)
            case (one, two):
                return self.start + self.lengths * (two - one * (1 / 3))
            case (one, two, three):
                return self.start + self.lengths * (one - two + three)
        return self.start

    def end(self) -> torch.Tensor:
        """Ends the step, all evaluations of which are there."""
        one, two, three, four = self.slopes
        return self.start + (one + 3 * (two + three) + four) * self.lengths / 8

    def split(self, blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each solution's."""
        return blocks.split(self.sizes)


def _joined(solutions: Sequence[Solution], times: Times) -> Joint:
    sizes = [solution.num_new for solution in solutions]
    lengths = [
        times.lengths[(solution.num_evaluated - 1) // STAGES].expand(solution.num_new, 1, 1)
        for solution in solutions
    ]
    columns = zip(*((solution.start, *solution.slopes) for solution in solutions), strict=True)
    start, *slopes = (torch.cat(column) for column in columns)
    return Joint(sizes, start, tuple(slopes), torch.cat(lengths))
