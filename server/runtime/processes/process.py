"""The process of one stage, seen from the server: start, log, end."""

import asyncio
import getpass
import logging
import os
import re
import signal
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from omnistage.connectors.sweep import SCRATCH
from omnistage.stage_configs.models.cache_folder import logs_folder
from omnistage.stages.messages.forked import worker_command
from omnistage.stages.messages.loading import clear_loading, read_loading
from omnistage.stages.messages.start_failure import read_start_failure

logger = logging.getLogger(__name__)

TERMINATE_PATIENCE_S = 5.0
LOG_PATIENCE_S = 5.0  # a resource tracker cleans up meanwhile
KEEP_PATIENCE_S = 2.0
MAX_LINE_BYTES = 1 << 16
LINE_END = re.compile(rb"[\r\n]+")
# As our lines and vLLM's begin; its engine's have the process before it.
LEVEL = re.compile(r"(?:\([^)]*\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
TRACEBACK = re.compile(
    r"(?:\([^)]*\) )?(?:ERROR .*\] )?Traceback \(most recent call last\)"
)  # vLLM begins each line of one anew
QUIET = (logging.ERROR, logging.CRITICAL)  # a line of another level ends a traceback
MAX_KEPT_LINES = 2000
NOTHING: Mapping[str, str] = MappingProxyType({})


class Started(Protocol):
    """A process as asyncio has it; `pid` is None until it is forked."""

    @property
    def pid(self) -> int | None:
        """Returns its id."""

    async def wait(self) -> int:
        """Returns its exit code, or less than 0 for a signal, once it has ended."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


Fork = Callable[[str, int], Awaitable[Started]]  # of a stage, with its output


class StageProcess:
    """One `stages/worker/worker.py` in a session of its own, so that its descendants end with it.

    Start it from the main thread: the kernel ends the child when the thread that made it ends.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] = NOTHING,
        *,
        stdin: int = asyncio.subprocess.DEVNULL,
        fork: Fork | None = None,
    ) -> None:
        self.name = name
        self._directory = directory
        self._is_unwanted = False
        self._stdin = stdin
        self._fork = fork
        own = worker_command([name], directory, os.getpid())
        self._command = own if command is None else list(command)
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        scratch = directory / SCRATCH
        if scratch.exists():
            self._environment |= scratch_environment(scratch.resolve())

    async def start(self) -> None:
        """Start the process and forward what it prints."""
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        self._log = StageLog(self.name, self._is_loading)
        await loop.connect_read_pipe(lambda: self._log, os.fdopen(reading, "rb", 0))
        try:
            fork = self._execute if self._fork is None else self._fork
            self._process = await fork(self.name, writing)
        finally:
            os.close(writing)
        self._watching = asyncio.create_task(self._watch())

    async def _execute(self, _: str, output: int) -> asyncio.subprocess.Process:
        """Starts it in an interpreter of its own."""
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=self._stdin,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=self._environment,
        )

    @property
    def pid(self) -> int | None:
        """The process's id, and its group's; None: it is not forked yet."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Returns whether it runs."""
        return not self._watching.done()

    async def wait(self) -> str:
        """How it ended, once it and its descendants have."""
        return await asyncio.shield(self._watching)

    def kill(self) -> None:
        """End it and its descendants at once."""
        with suppress(ProcessLookupError):  # it has just ended
            self._process.kill()
        self._kill_group()

    async def stop(self, grace_s: float) -> None:
        """Let it end by itself for `grace_s`, then ask, then kill."""
        self._is_unwanted = True
        if not await self._ends_within(grace_s):
            self._process.terminate()
            if not await self._ends_within(TERMINATE_PATIENCE_S):
                logger.warning("stage %s does not end: killing it", self.name)
                self.kill()
        await self._watching
        await self._log.close()
        for pid in self._members():  # a resource tracker that does not end
            _kill(pid)

    async def _watch(self) -> str:
        code = await self._process.wait()
        self._kill_group()
        if self._is_loading():
            if not self._is_unwanted:
                await self._keep_log()
            clear_loading(self._directory, self.name)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        why = read_start_failure(self._directory, self.name)
        return f"{how}: {why}" if why else how

    def _is_loading(self) -> bool:
        return read_loading(self._directory, self.name) is not None

    async def _keep_log(self) -> None:
        """Leave what was printed in a file: the log has no tracebacks of a start."""
        await self._log.ended(KEEP_PATIENCE_S)
        path = logs_folder() / f"{self.name}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._log.text, "utf-8")
        except OSError as error:
            logger.warning("the log of stage %s cannot be kept: %s", self.name, error)
        else:
            logger.error("what stage %s said before it ended is in %s", self.name, path)

    async def _ends_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._watching}, timeout=seconds)
        return bool(done)

    def _kill_group(self) -> None:
        """Kill all but Python's resource trackers: they clean up after the dead, then end."""
        for pid in self._members():
            if not _is_resource_tracker(pid):
                _kill(pid)

    def _members(self) -> list[int]:
        """The processes of our group that run."""
        members = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            state, group = fields[0], int(fields[2])
            if group == self._process.pid and state != "Z":
                members.append(int(stat.parent.name))
        return members


def scratch_environment(scratch: Path) -> dict[str, str]:
    """Temporary files go to a run's own folder; compiled code stays where the next run finds it."""
    kept = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    return {
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(kept)),
    }


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("process %d has just ended", pid)


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class StageLog(asyncio.Protocol):
    """The lines that a stage prints, in the server's log; tracebacks of a start at level debug."""

    def __init__(self, name: str, is_loading: Callable[[], bool] = lambda: False) -> None:
        self._name = name
        self._is_loading = is_loading
        self._is_quiet = False  # in a traceback of a start
        self._lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._rest = b""
        self._level = logging.INFO
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The pipe is open."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Log the lines that are complete; a progress bar's carriage return ends one too."""
        *lines, self._rest = LINE_END.split(self._rest + data)
        if len(self._rest) > MAX_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._write(line)

    def connection_lost(self, _: Exception | None) -> None:
        """Everyone who could print is gone."""
        self._write(self._rest)
        self._closed.set()

    def _write(self, line: bytes) -> None:
        if line.strip():
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            self._level = self._level_of(text)
            logger.log(self._level, "%s", text, extra={"stage": self._name})

    def _level_of(self, text: str) -> int:
        """Returns the level that the line names, else the level of the line before it."""
        if TRACEBACK.match(text):
            self._is_quiet = self._is_loading()
            return logging.DEBUG if self._is_quiet else logging.ERROR
        said = LEVEL.match(text)
        level = self._level if said is None else logging.getLevelNamesMapping()[said[1]]
        self._is_quiet = self._is_quiet and (said is None or level in QUIET)
        return logging.DEBUG if self._is_quiet else level

    @property
    def text(self) -> str:
        """The last lines."""
        return "".join(f"{line}\n" for line in self._lines)

    async def ended(self, within_s: float) -> bool:
        """Returns whether everyone who could print is gone, which is waited for."""
        try:
            async with asyncio.timeout(within_s):  # Python 3.11's wait_for may lose a cancel
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Take the rest, then let the pipe go."""
        if not await self.ended(LOG_PATIENCE_S):
            logger.warning("something still holds the output of stage %s", self._name)
        self._transport.close()
