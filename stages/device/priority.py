"""A CUDA stream of high priority, for small kernels that wait behind those of another process.

Under NVIDIA's MPS the kernels of all processes wait for places on the multiprocessors together, and
those of a stream of higher priority are placed first. A kernel in a CUDA graph has the priority of
the stream on which it was recorded.
"""

import contextlib
import os
from collections.abc import Iterator

import torch

# Of a stage's environment. Without it there is no such stream: what one brings to a server was not
# measured yet.
HIGH_PRIORITY = "OMNISTAGE_HIGH_PRIORITY"
HIGHEST = -5  # smaller is higher; CUDA takes the highest that the GPU has for what is beyond it


def priority_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for the device, if it is a GPU and the stage's environment asks for one."""
    if device.type != "cuda" or os.environ.get(HIGH_PRIORITY) != "1":
        return None
    return torch.cuda.Stream(device, priority=HIGHEST)


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
