"""The flow's differential equation: its times, its noise, and one window's way through them.

Runge and Kutta's method of fourth order, in the form of the 3/8 rule: four evaluations a step.
"""

from dataclasses import dataclass, replace

import torch

NUM_POINTS = 10
STAGES = 4


@dataclass(frozen=True, slots=True)
class Times:
    """`values`: the distinct times at which the model is evaluated, each with its own embedding.

    `of_evaluation`: which of them each evaluation has; `lengths`: of each step.
    """

    values: torch.Tensor
    of_evaluation: tuple[int, ...]
    lengths: tuple[torch.Tensor, ...]

    @property
    def num_evaluations(self) -> int:
        """Those of a whole solution."""
        return len(self.of_evaluation)


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
    return Times(values, tuple(places[float(time)] for time in times), tuple(lengths))


class Noise:
    """What an answer begins with: normal numbers of its seed, drawn a block at a time.

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

    def is_solved(self, times: Times) -> bool:
        """Whether `start` is the mel spectrogram."""
        return self.num_evaluated == times.num_evaluations

    def state(self, times: Times) -> torch.Tensor:
        """What enters the next evaluation."""
        length = times.lengths[self.num_evaluated // STAGES]
        match self.slopes:
            case (one,):
                return self.start + length * one * (1 / 3)
            case (one, two):
                return self.start + length * (two - one * (1 / 3))
            case (one, two, three):
                return self.start + length * (one - two + three)
        return self.start

    def after(self, state: torch.Tensor, velocity: torch.Tensor, times: Times) -> "Solution":
        """The solution with the evaluation of this state."""
        carried = state[max(self.num_kept - self.num_carried, 0) : self.num_kept].clone()
        entered = (*self.entered, carried)
        if len(self.slopes) < STAGES - 1:
            return replace(self, slopes=(*self.slopes, velocity.clone()), entered=entered)
        one, two, three = self.slopes
        length = times.lengths[self.num_evaluated // STAGES]
        step = (one + 3 * (two + three) + velocity) * length / 8
        return replace(self, start=self.start + step, slopes=(), entered=entered)

    @property
    def carried(self) -> torch.Tensor:
        """The `past` of the window that follows."""
        states = torch.cat([self.past, torch.stack(self.entered)], 1)
        return states[:, max(states.shape[1] - self.num_carried, 0) :]
