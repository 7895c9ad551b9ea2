"""Engines of tests, forked from a process that has imported vLLM once and started nothing.

An engine core that is spawned imports all of it again, which is most of what its start costs.
"""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext
from pathlib import Path
from typing import Any, ClassVar

# Nothing reads these while it is imported: pytest changes one, and our stages set the other.
READ_LATER = ("PYTEST_CURRENT_TEST", "VLLM_MEDIA_CONNECTOR")


class EngineProcess(ForkServerProcess):
    """One with the environment of its start, as if it were spawned."""

    def start(self) -> None:
        """Start it with today's environment, which is not that of the process it is forked from."""
        self.environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        """Take the environment, then do what there is to do."""
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class EngineContext(ForkServerContext):
    """Starts such processes."""

    Process: ClassVar[Any] = EngineProcess


CONTEXT = EngineContext()
imported_with: dict[str, str] = {}  # by the process from which engines are forked
is_alone: list[bool] = []  # whether that process has one thread: a lock of another stayed locked


def environment() -> dict[str, str]:
    """What libraries may read while they are imported."""
    return {name: value for name, value in os.environ.items() if name not in READ_LATER}


def count_threads_of_the_parent() -> None:
    """End with their number."""
    sys.exit(len(list(Path(f"/proc/{os.getppid()}/task").iterdir())))


def has_one_thread(context: ForkServerContext | SpawnContext) -> bool:
    """Return whether the process from which this context starts others has only one thread."""
    probe = context.Process(target=count_threads_of_the_parent)
    probe.start()
    probe.join()
    return probe.exitcode == 1


def context() -> ForkServerContext | SpawnContext:
    """For vLLM's `get_mp_context`: forks if what was imported is what would be, or spawns."""
    if not imported_with:
        imported_with.update(environment())
        CONTEXT.set_forkserver_preload(["engine_imports"])
        is_alone.append(has_one_thread(CONTEXT))
    if environment() != imported_with or not is_alone[0]:
        return multiprocessing.get_context("spawn")
    return CONTEXT
