"""Ray nodes on this machine: raylets of one cluster, each with a resource of its own name."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.faults.chaos import WORKER, command_of, is_there

HEAD, OTHER = "head", "other"  # of nodes, and of the resource that each has alone
STORE_BYTES = 100 << 20
MARK = "OMNISTAGE_TEST_NODES"  # in the environment of all that a test's nodes start
FOLDERS: set[Path] = set()  # that were seen


class RayNodes:
    """A cluster of a head, on which gateways are, and others."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "num_gpus": 2, "resources": {HEAD: 1}, "include_dashboard": False}
        arguments = {**head, "object_store_memory": STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.address: str = self._cluster.address
        self._others: dict[str, Any] = {}

    def add(self, name: str = OTHER) -> None:
        """Have another node join."""
        self._others[name] = self._cluster.add_node(
            num_cpus=2, resources={name: 1}, object_store_memory=STORE_BYTES
        )

    def restore(self) -> None:
        """Both nodes, whatever was ended."""
        if OTHER not in self._others:
            self.add()

    def kill(self, name: str = OTHER) -> None:
        """The end of a machine: its raylet and every process that came of it, at once."""
        node = self._others.pop(name)
        raylet: int = node.all_processes["raylet"][0].process.pid
        pids = [raylet, *children_of(raylet)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all of it."""
        self._cluster.shutdown()

    def groups(self) -> list[str]:
        """The states of the placement groups that are there, or were."""
        import ray
        from ray.util import placement_group_table

        ray.init(self.address, log_to_driver=False, configure_logging=False)
        try:
            return [group["state"] for group in placement_group_table().values()]
        finally:
            ray.shutdown()


def children_of(pid: int) -> list[int]:
    """All processes below one that are in its sessions or in others'."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, path.read_text().split()):
                found += [child, *children_of(child)]
    return found


@contextlib.contextmanager
def running_nodes() -> Iterator[RayNodes]:
    """A cluster of two nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, uuid4().hex)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        nodes = RayNodes()
        try:
            nodes.add()
            yield nodes
        finally:
            nodes.close()


def workers() -> dict[str, tuple[int, Path]]:
    """The stages that came of this process or its nodes: each one's process and run directory."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        words = command_of(int(path.name))
        if WORKER in words and is_there(int(path.name)) and is_ours(path):
            stage = words[words.index("--stage") + 1]
            folder = Path(words[words.index("--run-directory") + 1])
            found[stage] = int(path.name), folder
            FOLDERS.add(folder)
    return found


def is_ours(process: Path) -> bool:
    """Whether it has our mark in its environment; other tests of this machine have other marks."""
    mark = f"{MARK}={os.environ.get(MARK)}".encode()
    with contextlib.suppress(OSError):
        return mark in (process / "environ").read_bytes().split(b"\0")
    return False


def folders_left() -> list[Path]:
    """The run directories that stages had, as far as they are there."""
    return [folder for folder in FOLDERS if folder.exists()]
