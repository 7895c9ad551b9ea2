"""A CUDA stream of high priority, for small kernels that wait behind those of another process.

Under NVIDIA's MPS the kernels of all processes wait for places on the multiprocessors together, and
those of a stream of higher priority are placed first. A kernel in a CUDA graph has the priority of
the stream on which it was recorded.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

from omnistage.stage_configs.mps import stream_priority


def priority_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for the device, if it is a GPU and the stage's environment asks for one.

    Raises ValueError as `stream_priority` does.
    """
    priority = stream_priority(os.environ)
    if device.type != "cuda" or priority == 0:
        return None
    return torch.cuda.Stream(device, priority=-priority)  # CUDA's are higher the smaller they are


@contextlib.contextmanager
def launched_on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Launch what follows on a stream: behind all that was launched, and before what comes later.

    While a graph is recorded, the stream becomes part of it. None changes nothing.
    """
    if stream is None:
        yield
        return
    outer = torch.cuda.current_stream()
    stream.wait_stream(outer)
    with torch.cuda.stream(stream):
        yield
    outer.wait_stream(stream)
