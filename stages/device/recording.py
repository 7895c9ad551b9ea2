"""CUDA graphs of computations whose kernels take longer to launch than to run."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def record(
    compute: Callable[[], T], pool: Any, *, capture_error_mode: str = "global"
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of a computation, and what it writes, in the memory of other graphs.

    `capture_error_mode`: torch's, of what other threads may not do meanwhile.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what libraries set up at first use cannot be recorded
        compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool, capture_error_mode=capture_error_mode):
        output = compute()
    return graph, output
