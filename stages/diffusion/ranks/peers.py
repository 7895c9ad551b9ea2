"""The processes of the ranks other than 0: their start, their pipes, their death and their end."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from omnistage.stages.diffusion.ranks.orders import REPLIES, RankOrder, Reply, tell
from omnistage.stages.diffusion.ranks.process import worker_main
from omnistage.stages.diffusion.ranks.worker import RankSpec

logger = logging.getLogger(__name__)

END_S = 5.0


class RankError(RuntimeError):
    """An error of a rank, which it names."""


class Peers:
    """Starts the other ranks at once, and watches them until `close`."""

    def __init__(self, spec: RankSpec, on_death: Callable[[str], None]) -> None:
        """`spec` is that of rank 0. `on_death` is called from a thread."""
        self._spec = spec
        self._on_death = on_death
        self._pipes: dict[int, Connection] = {}
        self.processes: dict[int, SpawnProcess] = {}
        self._heard: dict[int, int] = {}  # each rank's last reply
        self._is_closed = threading.Event()
        for rank in range(1, spec.place.size):
            self._start(rank)
        self._watcher = threading.Thread(target=self._watch, name="omnistage-ranks", daemon=True)
        self._watcher.start()

    def __len__(self) -> int:
        return len(self._pipes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._pipes)

    def _start(self, rank: int) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        spec = replace(self._spec, place=replace(self._spec.place, rank=rank))
        process = context.Process(
            target=worker_main, args=(spec, theirs), name=f"rank-{rank}", daemon=True
        )
        process.start()
        theirs.close()
        self._pipes[rank], self.processes[rank] = ours, process

    def _watch(self) -> None:
        sentinels: dict[Any, int] = {one.sentinel: rank for rank, one in self.processes.items()}
        while sentinels and not self._is_closed.is_set():
            for sentinel in wait(list(sentinels), 0.2):
                rank = sentinels.pop(sentinel)
                if not self._is_closed.is_set():
                    self._on_death(self._death(rank))

    def _death(self, rank: int) -> str:
        process = self.processes[rank]
        process.join()
        told = replace(self._spec.place, rank=rank).failure_file
        why = f": {told.read_text()}" if told.exists() else ""
        return f"rank {rank} has died (exit code {process.exitcode}){why}"

    def heard(self, rank: int) -> int:
        """The number of a rank's last reply; 0 before there is one."""
        return self._heard.get(rank, 0)

    def tell(self, order: RankOrder) -> None:
        """Send an order to all; RankError if one has died."""
        for rank, pipe in self._pipes.items():
            try:
                tell(pipe, order)
            except OSError as error:
                raise _died(rank) from error

    def next_reply(self, rank: int, timeout_s: float | None) -> Reply | None:
        """The next reply of a rank; None: it has said nothing for so long."""
        try:
            if not self._pipes[rank].poll(timeout_s):
                return None
            reply = REPLIES.decode(self._pipes[rank].recv_bytes())
        except (EOFError, OSError) as error:
            raise _died(rank) from error
        self._heard[rank] = reply.number
        if reply.error:
            logger.error("rank %d: %s", rank, reply.error)
        return reply

    def ask_to_end(self, order: RankOrder) -> None:
        """Send the last order to all that live; from now on no death is told."""
        self._is_closed.set()
        for pipe in self._pipes.values():
            try:
                tell(pipe, order)
            except OSError:
                continue

    def close(self) -> None:
        """Wait for all to end, and kill those that do not."""
        for process in self.processes.values():
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._watcher.join()
        for rank, pipe in self._pipes.items():
            pipe.close()
            self.processes[rank].close()


def _died(rank: int) -> RankError:
    return RankError(f"rank {rank} has died")
