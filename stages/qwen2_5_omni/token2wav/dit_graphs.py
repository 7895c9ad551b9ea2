"""CUDA graphs of the DiT's lists, where launching kernels takes longer than running them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import le

import torch

from omnistage.stages.device.recording import record
from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import (
    BlockLayout,
    BlockList,
    Window,
    states_of,
)

SIZES = (3, 4, 6, 9, 12, 18, 27, 36, 45, 54, 63, 72, 90, 108, 126, 144)
SIZES += (*range(180, 469, 36), 504, 512)  # of lists that get graphs; many windows have nine blocks
NEW_OF_NINE = 7  # by the stage's own chunks of six blocks and one ahead; before them are two

Compute = Callable[[BlockList], torch.Tensor]


def counts_of_graphs(depth: int) -> Iterator[tuple[int, ...]]:
    """Returns the counts of every graph, the largest first: as many blocks in all layers, or fewer.

    A list fits if none of its counts is larger: its blocks lie where the graph's do.
    """
    for size in sorted(SIZES, reverse=True):
        yield (size,) * (depth + 1)
        fewer = tuple(-(-size * (NEW_OF_NINE + at) // (NEW_OF_NINE + depth)) for at in range(depth))
        if fewer and fewer[-1] < size:
            yield (*fewer, size)


class StaticBlocks:
    """Inputs of graphs at addresses that stay; a graph reads as many blocks as it has."""

    def __init__(self, example: BlockList, num_blocks: int) -> None:
        def zeros(like: torch.Tensor) -> torch.Tensor:
            return like.new_zeros(num_blocks, *like.shape[1:])

        self._state = zeros(example.state)
        self._voices = zeros(example.voices)
        self._table = zeros(example.table)

    def of(self, counts: tuple[int, ...]) -> BlockList:
        """A list of so many blocks."""
        size = counts[-1]
        return BlockList(counts, self._state[:size], self._voices[:size], self._table[:size])

    def put(self, windows: Sequence[Window], layout: BlockLayout, num_blocks: int) -> None:
        """Make them the windows' blocks, and others up to a number; nothing waits for it.

        What the others' states were before stays: what is computed of blocks that nobody wants must
        be numbers, and what is looked at must be in the list.
        """
        torch.cat(states_of(windows), out=self._state[: len(layout.table)])
        torch.stack([one.voice for one in windows], out=self._voices[: len(windows)])
        table = torch.from_numpy(layout.padded(num_blocks))
        if self._table.is_cuda:
            table = table.pin_memory()
        self._table[:num_blocks].copy_(table, non_blocking=True)


@dataclass(frozen=True, slots=True)
class RecordedBlocks:
    """A computation of so many blocks, and where it leaves the velocity."""

    graph: torch.cuda.CUDAGraph
    velocity: torch.Tensor


class DiTGraphs:
    """Records a computation for some counts; a list is put into the smallest that takes it."""

    def __init__(self) -> None:
        self._recorded: dict[tuple[int, ...], RecordedBlocks] = {}
        self._static: StaticBlocks | None = None

    def record(self, compute: Compute, example: BlockList) -> None:
        """All graphs, the largest first: its memory then serves the others."""
        self._static = StaticBlocks(example, max(SIZES))
        pool = None
        for counts in counts_of_graphs(len(example.counts) - 1):
            blocks = self._static.of(counts)
            graph, velocity = record(partial(compute, blocks), pool)
            pool = graph.pool()
            self._recorded[counts] = RecordedBlocks(graph, velocity)
        self._recorded = {one: self._recorded[one] for one in sorted(self._recorded, key=sum)}

    def velocity(self, windows: Sequence[Window], layout: BlockLayout) -> torch.Tensor | None:
        """Returns the velocity of new blocks [n, frames, mel]; None if no graph takes the list."""
        counts = fitting(layout.counts, self._recorded)
        if counts is None or self._static is None:
            return None
        self._static.put(windows, layout, counts[-1])
        recorded = self._recorded[counts]
        recorded.graph.replay()
        return recorded.velocity[: layout.counts[0]].clone()


def fitting(counts: tuple[int, ...], among: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The first that take a list; `among` has those with the least to compute first."""
    return next((one for one in among if all(map(le, counts, one))), None)
