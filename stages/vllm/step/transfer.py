"""Host arrays on their way to the engine's device."""

import numpy as np
import torch


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device; nothing waits for it. On a CPU it shares the array's memory.

    On CUDA the host's side is pinned and comes from torch's caching host allocator, which does not
    hand a block out again before the copies that use it are done.
    """
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)
