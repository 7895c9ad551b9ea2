"""CUDA graphs of a decoder's small batches, where launching kernels takes longer than running."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from omnistage.stages.device.recording import record

Decode = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """One recorded shape and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    rows: torch.Tensor
    codes: torch.Tensor
    pcm: torch.Tensor


class DecodeGraphs:
    """Records `decode(rows, codes)` for some shapes; a spare row fills missing ones.

    Rows are int64 [B, 2]: where a stream's state is read, and where its next one is written.
    """

    def __init__(self, decode: Decode, spare_row: int) -> None:
        self._decode = decode
        self._spare_row = spare_row
        self._graphs: dict[tuple[int, int], DecodeGraph] = {}
        self._pool: Any = None

    def record(self, codes: torch.Tensor) -> None:
        """Record the shape of these codes [B, codebooks, n], which are on the device."""
        rows = torch.full((len(codes), 2), self._spare_row, device=codes.device)
        graph, pcm = record(lambda: self._decode(rows, codes), self._pool)
        self._pool = graph.pool()
        self._graphs[codes.shape[0], codes.shape[-1]] = DecodeGraph(graph, rows, codes, pcm)

    def decode(self, rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor | None:
        """Replay the smallest shape that fits, or None; takes tensors of any device."""
        num_rows, num_frames = codes.shape[0], codes.shape[-1]
        fitting = [
            count for count, frames in self._graphs if frames == num_frames and count >= num_rows
        ]
        if not fitting:
            return None
        recorded = self._graphs[min(fitting), num_frames]
        recorded.rows[num_rows:].fill_(self._spare_row)
        recorded.rows[:num_rows].copy_(rows)
        recorded.codes[:num_rows].copy_(codes)
        recorded.graph.replay()
        return recorded.pcm[:num_rows].clone()
