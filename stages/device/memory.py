"""Memory of a GPU, or of the host and the cgroups we are in: what is free, and what if none is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

GIB = 1 << 30
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
# Words of what is raised as a plain RuntimeError: by torch for the host, by CUDA's runtime.
WANT_OF_MEMORY = ("can't allocate memory", "out of memory")


class CgroupFiles(NamedTuple):
    """The files of a version of cgroups: the limit, the use, and the use that can be given back."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]  # keys of memory.stat: the page cache


VERSION_1 = CgroupFiles(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
)
VERSION_2 = CgroupFiles(
    "memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")
)


def free_bytes(device: torch.device) -> int:
    """Returns what can still be taken of a device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_free_bytes()


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether a computation failed for want of memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in WANT_OF_MEMORY)


def release_cached() -> None:
    """Give memory that torch keeps for later back to the GPU; all devices of this process."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def host_free_bytes(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """MemAvailable, or less where a cgroup of ours has a limit."""
    return min([int(psutil.virtual_memory().available), *_free_in_cgroups(cgroups, own)])


def _free_in_cgroups(cgroups: Path, own: Path) -> Iterator[int]:
    """Returns what is free in each cgroup that we are in, from the innermost to the root."""
    for hierarchy, path, names in _memory_cgroups(cgroups, own):
        innermost = hierarchy / path
        for folder in (innermost, *innermost.parents):
            if not folder.is_relative_to(hierarchy):
                break
            free = _free_in(folder, names)
            if free is not None:
                yield free


def _memory_cgroups(cgroups: Path, own: Path) -> Iterator[tuple[Path, str, CgroupFiles]]:
    """Yields for each hierarchy with a memory controller where it is mounted, and our place in
    it.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return  # no Linux, or no cgroups
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield cgroups, path.lstrip("/"), VERSION_2
        elif "memory" in controllers.split(","):
            yield cgroups / "memory", path.lstrip("/"), VERSION_1


def _free_in(folder: Path, names: CgroupFiles) -> int | None:
    """None without a limit, or in a container that does not see this cgroup of its host."""
    try:
        limit = (folder / names.limit).read_text().strip()
        if limit == "max":
            return None
        used = int((folder / names.used).read_text())
        stat = _numbers(folder / "memory.stat")
    except OSError:
        return None
    reclaimable = sum(stat.get(key, 0) for key in names.reclaimable)
    return max(0, int(limit) - used + reclaimable)


def _numbers(path: Path) -> Mapping[str, int]:
    """A file of lines of a key and a number."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {key: int(number) for key, number in pairs}
