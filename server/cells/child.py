"""A program that runs beside others below one parent: its lines, its end, how it is told to end."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from omnistage.server.cells import bound

MAX_LINE_BYTES = 1 << 20
KEPT_LINES = 20
Write = Callable[[str], object]


class Child:
    """One life of a program, in a session of its own; it ends when this process does.

    Start it from the main thread: the kernel ends the child when the thread that made it ends.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        write: Write = sys.stderr.write,
    ) -> None:
        self.name = name
        self._command = [sys.executable, str(Path(bound.__file__)), str(os.getpid()), *command]
        self._environment = environment
        self._write = write
        self.is_started = False
        self._last: deque[str] = deque(maxlen=KEPT_LINES)

    async def start(self) -> None:
        """Start it and forward what it prints."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            env={**os.environ, **self._environment},
            limit=MAX_LINE_BYTES,
        )
        self._watching = asyncio.create_task(self._watch())
        self.is_started = True

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._process.pid

    @property
    def last_line(self) -> str:
        """What it said last."""
        return next((line for line in reversed(self._last) if line), "it said nothing")

    async def wait(self) -> str:
        """How it ended, once it has."""
        return await asyncio.shield(self._watching)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end_within(self, seconds: float) -> bool:
        """Whether it ends by itself in time; if not, it is killed."""
        done, _ = await asyncio.wait({self._watching}, timeout=seconds)
        if not done:
            self.tell(signal.SIGKILL)
            await self._watching
        return bool(done)

    async def _watch(self) -> str:
        reading = asyncio.create_task(self._read())
        code = await self._process.wait()
        await asyncio.wait({reading}, timeout=1)  # what it has left may hold the pipe
        reading.cancel()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than a line may be: the rest comes as another one
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._last.append(text)
            self._write(f"{named(self.name, text)}\n")


def named(name: str, line: str) -> str:
    """A line with whose it is: a key of an object in JSON, else before it."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            return json.dumps({"cell": name, **json.loads(line)})
    return f"{name} | {line}"
