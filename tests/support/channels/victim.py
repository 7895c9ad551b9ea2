"""Starts processes that hold one end of a channel and kill themselves at an instruction.

It reads lines `side generation instructions` and answers each with how that process ended:
`killed`, `done` (it had fewer instructions) or an exit code.
"""

import os
import select
import signal
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from support.channels.notes import NOTES, Note

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor

ADDRESS = "c"
OPTIONS = {"arena_mb": 1, "credit": 2}
SIZES = (5, 300_000, 0, 7)  # of the chunks that either side sends
STREAMED_SIZE = 400_000
FOLDER = f"{os.sep}connectors{os.sep}"


def pattern(generation: int, index: int) -> Chunk[Note]:
    """A chunk that `check` knows again; the last of a request is its fourth."""
    values = np.full(SIZES[index], (generation + index) % 251, np.uint8)
    tensors = {"v": Tensor.from_numpy(values)}
    note = Note(more={"generation": generation})
    return Chunk("a", note, index, tensors, index == len(SIZES) - 1)


def check(chunk: Chunk[Note], generation: int, index: int) -> None:
    """The chunk is whole, and is that one and no other."""
    _check(chunk, generation, index, SIZES[index])


def check_streamed(chunk: Chunk[Note], generation: int, index: int) -> None:
    """The same of an endless stream."""
    _check(chunk, generation, index, STREAMED_SIZE)


def _check(chunk: Chunk[Note], generation: int, index: int, size: int) -> None:
    values = chunk.tensors["v"].numpy()
    assert (chunk.message.more["generation"], chunk.index) == (generation, index)
    assert len(values) == size
    assert (values == (generation + index) % 251).all()


def die_after(num_instructions: int, *names: str) -> None:
    """Send SIGKILL to ourselves after so many instructions in files whose path has such a name."""
    left = num_instructions

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not any(name in frame.f_code.co_filename for name in names):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def send(directory: Path, generation: int, num_instructions: int) -> None:
    """A sender's whole life."""
    connector = make_connector("shm", directory, OPTIONS)
    die_after(num_instructions, FOLDER)
    sender = connector.sender(ADDRESS)
    for index in range(len(SIZES)):
        sender.send(pattern(generation, index))
    sender.flush()
    sender.close()


def receive(directory: Path, generation: int, num_instructions: int) -> None:
    """A receiver's whole life: all that has come, each granted."""
    connector = make_connector("shm", directory, OPTIONS)
    die_after(num_instructions, FOLDER)
    receiver = connector.receiver(ADDRESS, NOTES)
    index = 0
    while (chunk := receiver.receive()) is not None:
        check(chunk, generation, index)
        receiver.grant("a")
        index += 1
    receiver.forget("a")
    receiver.close()
    assert index == OPTIONS["credit"]


def stream(directory: Path, generation: int, _: int) -> None:
    """Send large chunks for ever, as fast as they go."""
    connector = make_connector("shm", directory, {**OPTIONS, "credit": 0})
    sender = connector.sender(ADDRESS)
    for index in count():
        values = np.full(STREAMED_SIZE, (generation + index) % 251, np.uint8)
        note = Note(more={"generation": generation, "pid": os.getpid()})
        sender.send(Chunk("a", note, index, {"v": Tensor.from_numpy(values)}))
        while sender.flush():
            select.select([sender], [], [])


SIDES = {"send": send, "receive": receive, "stream": stream}


def main() -> None:
    """Fork for each line, so that a life costs milliseconds."""
    directory = Path(sys.argv[1])
    for line in sys.stdin:
        side, generation, num_instructions = line.split()
        pid = os.fork()
        if pid == 0:
            SIDES[side](directory, int(generation), int(num_instructions))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        sys.stdout.write({-signal.SIGKILL: "killed", 0: "done"}.get(code, f"{code}") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
