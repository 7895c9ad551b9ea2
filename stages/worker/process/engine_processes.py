"""The processes that a stage's engine computes in: the end of one is the end of all."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

from omnistage.stages.worker.stage import HasEngine, Stage

logger = logging.getLogger("omnistage.stage")

ENGINE_DIED = 70  # the exit code of a stage whose engine has died

# How Python starts a process for multiprocessing, and what vLLM names its ranks.
SPAWNED, RANK = b"--multiprocessing-fork", b"::Worker"


def engine_processes() -> list[int]:
    """Returns the processes that this one started by multiprocessing, and the ranks that they
    have.
    """
    started = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    return [one for child in started for one in (child, *_ranks_of(child))]


def _ranks_of(process: int) -> list[int]:
    """Returns what it has started by multiprocessing; compilers and resource trackers are not."""
    found = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            found += [int(child) for child in children.read_text().split()]
    return [child for child in found if _is_rank(child)]


def _is_rank(process: int) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return SPAWNED in command or RANK in command


class EngineProcesses:
    """Calls `on_end` with the id of the first of them that ends; in the running event loop."""

    def __init__(self, on_end: Callable[[int], None]) -> None:
        self._files: list[int] = []
        loop = asyncio.get_running_loop()
        for process in engine_processes():
            try:
                file = os.pidfd_open(process)
            except ProcessLookupError:
                on_end(process)
                continue
            self._files.append(file)
            loop.add_reader(file, on_end, process)

    def close(self) -> None:
        """Watch no longer."""
        loop = asyncio.get_running_loop()
        for file in self._files:
            loop.remove_reader(file)
            os.close(file)
        self._files = []


def end_with(process: int) -> None:
    """End at once with a process of our engine, so that the server starts us again."""
    logger.error("process %d of the engine ended", process)
    os._exit(ENGINE_DIED)


def leave_if_engine_died(stage: Stage, name: str) -> None:
    """Exit if the engine has died: its processes may take seconds to end, and requests would
    fail.
    """
    if isinstance(stage, HasEngine) and stage.is_dead:
        logger.error("the engine of stage %s has died", name)
        os._exit(ENGINE_DIED)
