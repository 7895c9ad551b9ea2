"""A command on a terminal of its own, and what a person sees there."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

# What rich writes: a control sequence, a link, and the rest character by character.
TOKEN = re.compile(
    r"\x1b\[(?P<number>[\d;?]*)(?P<command>[A-Za-z])|\x1b\]8;[^\x1b\x07]*(?:\x07|\x1b\\)|(?P<char>.)",
    re.DOTALL,
)


class Terminal:
    """A command, started on a pseudo-terminal of 50 rows. It never waits for somebody to read."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], columns: int = 120
    ) -> None:
        self.written = b""
        self._fd, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "TERM": "xterm"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=partial(fcntl.ioctl, inside, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.pid = self.process.pid
        self._changed = threading.Condition()
        self._has_ended = False
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def lines(self) -> list[str]:
        """What is on the screen, and what went off it at the top."""
        return screen(self.written.decode(errors="replace"))

    def read_until(self, text: str, within_s: float = 600) -> None:
        """Returns when a line on the screen has this text; AssertionError if none gets it."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while not any(text in line for line in self.lines):
                assert not self._has_ended, "\n".join(self.lines)
                assert self._changed.wait(deadline - time.monotonic()), "\n".join(self.lines)

    def press_ctrl_c(self) -> None:
        """What the key does: SIGINT for the terminal's foreground processes."""
        os.write(self._fd, b"\x03")

    def wait(self, within_s: float = 600) -> int:
        """Returns the exit code, once the command has ended; it is killed if it takes too long."""
        self._reading.join(within_s)
        if self._reading.is_alive():
            self.process.kill()
            self._reading.join()
        os.close(self._fd)
        return self.process.wait()

    def _read(self) -> None:
        """Take what comes, until nothing can come any more."""
        with contextlib.suppress(OSError):  # Linux' way to say that the other end is closed
            while data := os.read(self._fd, 1 << 16):
                with self._changed:
                    self.written += data
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def screen(written: str) -> list[str]:
    """Returns the lines that a terminal shows of what was written to it; none is empty."""
    rows: list[list[str]] = [[]]
    row = column = 0
    for token in TOKEN.finditer(written):
        if token["command"] == "A":
            row = max(0, row - int(token["number"] or 1))
        elif token["command"] == "K":
            rows[row] = []
        elif token["char"] == "\r":
            column = 0
        elif token["char"] == "\n":
            row += 1
            rows += [[] for _ in range(row + 1 - len(rows))]
        elif token["char"] is not None:
            line = rows[row]
            line += " " * (column + 1 - len(line))
            line[column] = token["char"]
            column += 1
    return [text for line in rows if (text := "".join(line).rstrip())]
