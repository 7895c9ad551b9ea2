"""A command on a terminal of its own, and what a person sees there."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence

# What rich writes: a control sequence, a link, and the rest character by character.
TOKEN = re.compile(
    r"\x1b\[(?P<number>[\d;?]*)(?P<command>[A-Za-z])|\x1b\]8;[^\x1b\x07]*(?:\x07|\x1b\\)|(?P<char>.)",
    re.DOTALL,
)


class Terminal:
    """A command, started on a pseudo-terminal of 50 rows."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], columns: int = 120
    ) -> None:
        self.written = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", 50, columns, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execvpe(command[0], list(command), {**os.environ, **environment, "TERM": "xterm"})

    @property
    def lines(self) -> list[str]:
        """What is on the screen, and what went off it at the top."""
        return screen(self.written.decode(errors="replace"))

    def read_until(self, text: str, within_s: float = 600) -> None:
        """Returns when a line on the screen has this text; AssertionError if none gets it."""
        deadline = time.monotonic() + within_s
        while not any(text in line for line in self.lines):
            assert time.monotonic() < deadline, "\n".join(self.lines)
            assert self._read(0.1), "\n".join(self.lines)

    def press_ctrl_c(self) -> None:
        """What the key does: SIGINT for the terminal's foreground processes."""
        os.write(self._fd, b"\x03")

    def wait(self, within_s: float = 600) -> int:
        """Returns the exit code, once the command has ended; it is killed if it takes too long."""
        deadline = time.monotonic() + within_s
        while self._read(0.1):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._fd)
        return code

    def _read(self, within_s: float) -> bool:
        """Takes what has come; False once nothing can come any more."""
        if select.select([self._fd], [], [], within_s)[0]:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # Linux' way to say that the other end is closed
                return False
            self.written += data
            return bool(data)
        return True


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
