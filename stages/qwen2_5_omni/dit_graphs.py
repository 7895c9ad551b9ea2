"""CUDA graphs of the DiT's small lists, where launching kernels takes longer than running them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from omnistage.stages.qwen2_5_omni.dit_blocks import BlockList

SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of lists that get a graph
TENSORS = tuple(field.name for field in fields(BlockList) if field.name != "counts")

Compute = Callable[[BlockList], torch.Tensor]


def padded(blocks: BlockList, size: int) -> BlockList:
    """A list of so many blocks that keeps its addresses; each is computed in every layer.

    It holds copies of the given ones, again and again: what is computed of blocks that nobody
    wants must be numbers, too.
    """
    made: dict[str, Any] = {}
    for name in TENSORS:
        tensor: torch.Tensor = getattr(blocks, name)
        rows = len(tensor) // len(blocks.state) * size
        index = torch.arange(rows, device=tensor.device) % len(tensor)
        made[name] = tensor[index].clone()
    return BlockList(counts=(size,) * len(blocks.counts), **made)


def put(blocks: BlockList, into: BlockList) -> None:
    """Overwrite the first blocks of a padded list."""
    for name in TENSORS:
        tensor: torch.Tensor = getattr(blocks, name)
        getattr(into, name)[: len(tensor)].copy_(tensor)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One size, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    blocks: BlockList
    velocity: torch.Tensor


class DiTGraphs:
    """Records a computation for some sizes; a list is put into the smallest that takes it."""

    def __init__(self) -> None:
        self._recorded: dict[int, Recorded] = {}

    def record(self, compute: Compute, example: BlockList) -> None:
        """Every size, the largest first: its memory then serves the others."""
        pool = None
        for size in sorted(SIZES, reverse=True):
            blocks = padded(example, size)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # what libraries set up at first use cannot be recorded
                compute(blocks)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                velocity = compute(blocks)
            pool = graph.pool()
            self._recorded[size] = Recorded(graph, blocks, velocity)

    def velocity(self, blocks: BlockList) -> torch.Tensor | None:
        """Of the new blocks [n, frames, mel]; None if there is no graph for so many."""
        fitting = [size for size in self._recorded if size >= len(blocks.state)]
        if not fitting:
            return None
        recorded = self._recorded[min(fitting)]
        put(blocks, recorded.blocks)
        recorded.graph.replay()
        return recorded.velocity[: blocks.counts[0]].clone()
