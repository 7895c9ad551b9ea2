"""CUDA graphs of the vocoder's windows, where launching kernels takes longer than running them."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from omnistage.stages.device.recording import record

COUNTS = (1, 2, 4, 8)  # of windows that get a graph; more of them keep a GPU busy

Decode = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RecordedShape:
    """One shape, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    mel: torch.Tensor
    samples: torch.Tensor


class WindowGraphs:
    """Records a vocoder for windows of some lengths; fewer of them than a graph has fit, too."""

    def __init__(self) -> None:
        self._recorded: dict[tuple[int, int], RecordedShape] = {}

    def record(
        self, decode: Decode, lengths: Set[int], num_mels: int, device: torch.device
    ) -> None:
        """Every shape, the largest first: its memory then serves the others."""
        pool = None
        shapes = product(COUNTS, lengths)
        for count, length in sorted(shapes, key=lambda shape: shape[0] * shape[1], reverse=True):
            mel = torch.zeros(count, length, num_mels, device=device)
            graph, samples = record(partial(decode, mel), pool)
            pool = graph.pool()
            self._recorded[count, length] = RecordedShape(graph, mel, samples)

    def decode(self, mel: torch.Tensor) -> torch.Tensor | None:
        """Samples of mel frames [windows, frames, mel]; None if there is no graph for them."""
        num_windows, num_frames = mel.shape[:2]
        fitting = [
            count
            for count, frames in self._recorded
            if frames == num_frames and count >= num_windows
        ]
        if not fitting:
            return None
        recorded = self._recorded[min(fitting), num_frames]
        recorded.mel[:num_windows].copy_(mel)
        recorded.graph.replay()
        return recorded.samples[:num_windows].clone()
