"""CUDA graphs of the vocoder's small batches, where launching kernels takes longer than running."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Decode = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """One recorded shape and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    slots: torch.Tensor
    codes: torch.Tensor
    pcm: torch.Tensor


class DecodeGraphs:
    """Records `decode(slots, codes)` for some shapes; a spare slot fills missing rows.

    Slots are int64 [B, 2]: where a stream's state is read, and where its next one is written.
    """

    def __init__(self, decode: Decode, spare_slot: int) -> None:
        self._decode = decode
        self._spare_slot = spare_slot
        self._graphs: dict[tuple[int, int], DecodeGraph] = {}
        self._pool: Any = None

    def record(self, codes: torch.Tensor) -> None:
        """Record the shape of these codes [B, codebooks, n], which are on the device."""
        slots = torch.full((len(codes), 2), self._spare_slot, device=codes.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what libraries set up at first use cannot be recorded
            self._decode(slots, codes)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            pcm = self._decode(slots, codes)
        self._pool = graph.pool()
        self._graphs[codes.shape[0], codes.shape[-1]] = DecodeGraph(graph, slots, codes, pcm)

    def decode(self, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor | None:
        """Replay the smallest shape that fits, or None; takes tensors of any device."""
        num_rows, num_frames = codes.shape[0], codes.shape[-1]
        fitting = [
            rows for rows, frames in self._graphs if frames == num_frames and rows >= num_rows
        ]
        if not fitting:
            return None
        recorded = self._graphs[min(fitting), num_frames]
        recorded.slots[num_rows:].fill_(self._spare_slot)
        recorded.slots[:num_rows].copy_(slots)
        recorded.codes[:num_rows].copy_(codes)
        recorded.graph.replay()
        return recorded.pcm[:num_rows].clone()
