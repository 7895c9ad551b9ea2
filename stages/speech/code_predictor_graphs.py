"""CUDA graphs of the code predictor, for steps that vLLM does not replay as one graph.

A step that also prefills runs its layers piece by piece and everything around them kernel by
kernel; the code predictor's thousand kernels would take ten times as long to launch as to run.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from omnistage.stages.device.recording import record
from omnistage.stages.speech.code_predictor import CodePredictor

Arguments = dict[str, torch.Tensor]


class CodePredictorGraphs:
    """Calls a code predictor through graphs of some batch sizes; a larger batch runs without."""

    def __init__(self, predictor: CodePredictor, sizes: Sequence[int]) -> None:
        self._predictor = predictor
        self._sizes = sorted(sizes)
        self._arguments: Arguments = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._results: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, **arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes like the predictor's `forward`; the next call overwrites the results."""
        num_rows = len(arguments["code0"])
        size = next((size for size in self._graphs if size >= num_rows), None)
        if size is None:
            return self._predictor(**arguments)
        for name, argument in arguments.items():
            self._arguments[name][:num_rows].copy_(argument)
        self._graphs[size].replay()
        codes, frames = self._results[size]
        return codes[:num_rows], frames[:num_rows]

    def record(self, like: Arguments) -> None:
        """Record every size; `like` has arguments of the right types and widths, of any rows."""
        if not self._sizes:
            return
        self._arguments = {
            name: argument.new_zeros(self._sizes[-1], *argument.shape[1:])
            for name, argument in like.items()
        }
        pool: Any = None
        for size in reversed(self._sizes):  # the memory of the largest then serves the others
            arguments = {name: buffer[:size] for name, buffer in self._arguments.items()}
            graph, self._results[size] = record(
                partial(self._predictor, **arguments), pool, capture_error_mode="thread_local"
            )
            pool = graph.pool()
            self._graphs[size] = graph
        self._graphs = dict(sorted(self._graphs.items()))
