"""Processes that import for the stages of a server, which are forked from them.

A stage's imports take seconds, and a stage that is started again would import the same again.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from omnistage.server.runtime.processes.process import StageProcess
from omnistage.stage_configs.environment import stage_environment
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.gpus import used_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.forked import Exited, decode, worker_command

logger = logging.getLogger(__name__)

STOP_S = 1.0
REPORT_S = 5.0
MAX_MESSAGE_BYTES = 256


class Importer:
    """A process that imports for some stages, and runs while one of them may be started again."""

    def __init__(
        self, stages: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> None:
        self._stages = stages
        self._directory = directory
        self._environment = environment
        self._starting = asyncio.Lock()
        self._process: StageProcess | None = None

    async def fork(self, stage: str, output: int) -> "ForkedProcess":
        """Ask for a stage's process, which writes to this descriptor; it may be forked later."""
        async with self._starting:
            if self._process is None or not self._process.is_alive:
                self._process = await self._started()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, suppress(BrokenPipeError):  # it has just ended, and so has the stage
            socket.send_fds(self._requests, [stage.encode()], [output, theirs.fileno()])
        return ForkedProcess(stage, ours, self._process)

    async def close(self) -> None:
        """End it; its stages have ended."""
        if self._process is not None:
            self._requests.close()
            await self._process.stop(STOP_S)

    async def _started(self) -> StageProcess:
        if self._process is not None:
            await self.close()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = worker_command(self._stages, self._directory, os.getpid())
        command.append("--importer")
        with theirs:
            process = StageProcess(
                "importer", self._directory, command, self._environment, stdin=theirs.fileno()
            )
            await process.start()
        return process


class ForkedProcess:
    """A stage's process that an importer forks, as asyncio has its own.

    `pid`: None until it is forked. It ends with its importer.
    """

    def __init__(self, stage: str, status: socket.socket, importer: StageProcess) -> None:
        self.pid: int | None = None
        self._stage = stage
        self._status = status
        self._importer = importer
        self._is_unwanted = False
        self._has_ended = False

    async def wait(self) -> int:
        """Returns its exit code, or less than 0 for a signal, once it has ended.

        Without an importer that reports it, the socket ends with the last process that has it.
        """
        loop = asyncio.get_running_loop()
        with self._status:
            while message := await loop.sock_recv(self._status, MAX_MESSAGE_BYTES):
                told = decode(message)
                if isinstance(told, Exited):
                    self._has_ended = True
                    return told.code
                self.pid = told.process
        self._has_ended = True
        how = await self._importer.wait()
        if not self._is_unwanted:
            logger.error("the importer of stage %s ended: %s", self._stage, how)
        return -signal.SIGKILL

    def terminate(self) -> None:
        """Ask it to end, or end its importer if that has not forked it yet."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it; an importer that does not report it within REPORT_S hangs, and is ended, too."""
        self._signal(signal.SIGKILL)
        asyncio.get_running_loop().call_later(REPORT_S, self._end_importer)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            self._end_importer()
        elif not self._has_ended:
            with suppress(ProcessLookupError):  # its importer is about to report it
                os.kill(self.pid, number)

    def _end_importer(self) -> None:
        if not self._has_ended:
            self._is_unwanted = True
            self._importer.kill()


class Importers:
    """The importers of a server: one for all stages with the same engine and environment.

    Libraries read the environment as they are imported, and vLLM changes how torch compiles. So no
    other stages share one. Stages with GPUs have none: a forked process cannot use CUDA if an
    import has begun to, and whether one does was not tried on a GPU.
    """

    def __init__(self, graph: StageGraph, directory: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._importers: dict[str, Importer] = {}
        groups: dict[object, list[str]] = {}
        for name, replica in graph.replicas.items():
            if used_gpus(replica.gpus):
                continue
            spec = graph.spec_of(name)
            own = stage_environment(spec, replica.gpus)
            key = frozenset(own.items()), KINDS[spec.kind].arguments
            groups.setdefault(key, []).append(name)
        for names in groups.values():
            importer = Importer(names, directory, environment)
            self._importers |= dict.fromkeys(names, importer)

    def launch(self, stage: str, directory: Path) -> StageProcess:
        """Return a stage's process, to be started."""
        importer = self._importers.get(stage)
        fork = None if importer is None else importer.fork
        return StageProcess(stage, directory, environment=self._environment, fork=fork)

    async def close(self) -> None:
        """End them all; every stage has ended."""
        await asyncio.gather(*(one.close() for one in set(self._importers.values())))
