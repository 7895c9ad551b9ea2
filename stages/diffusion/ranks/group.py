"""The process group of all ranks, and what each of them is of it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

START = timedelta(hours=1)  # a rank may load for so much longer than another
LOOPBACK = "GLOO_SOCKET_IFNAME", "lo"  # all ranks are on one machine, and nobody else joins


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank's. `store`: the file by which they find each other."""

    rank: int
    size: int
    group_size: int
    store: str

    @property
    def group(self) -> int:
        """Returns which group it is in: ranks of one compute a call together."""
        return self.rank // self.group_size

    @property
    def is_first(self) -> bool:
        """Returns whether its results are its group's."""
        return self.rank % self.group_size == 0

    @property
    def failure_file(self) -> Path:
        """It says why the rank has ended, if it failed alone."""
        return Path(f"{self.store}-failure-{self.rank}")


def device_of_rank(rank: int, device: torch.device) -> torch.device:
    """Each has a GPU of its own, in the order in which the process sees them."""
    return torch.device("cuda", rank) if device.type == "cuda" else device


@contextmanager
def joined_group(place: RankPlace, device: torch.device) -> Iterator[None]:
    """Inside, this process is in the group; it begins when all are."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if sys.platform == "linux":
        os.environ.setdefault(*LOOPBACK)
    share_cores(place.size, device)
    store = FileStore(place.store, place.size)
    # numbers of the host, such as lengths, do not go by the GPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.size, timeout=START
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def share_cores(size: int, device: torch.device) -> None:
    """On a CPU all ranks compute at the same time."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
