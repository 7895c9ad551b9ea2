"""Forks the processes of stages from this one, which has imported what they need.

The server sends a stage's name and the descriptor for its output on a socket, with a second socket
for what becomes of the process: its id, which it sends itself, and how it ended.
"""

import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omnistage.stages.messages.forked import Exited, Forked, encode

MAX_BYTES = 4096
CUDA = "/dev/nvidia-uvm"  # open where CUDA has begun, which no forked process could use then


def fork_stages(requests: socket.socket, start_anew: Callable[[str], None]) -> str:
    """Fork a process for each request; returns in each of them, with its stage's name.

    Where an import has begun to use CUDA, the process calls `start_anew` with it in place of that.
    Ends this process when the server closes its socket.
    """
    may_fork = not uses_cuda()
    children: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor of the process
    while True:
        ready, _, _ = select.select([requests.fileno(), *children], [], [])
        for child in set(ready) & children.keys():
            _tell_end(child, *children.pop(child))
        if requests.fileno() not in ready:
            continue
        name, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not name:
            os._exit(0)
        output, status = descriptors
        process = os.fork()
        if process:
            children[os.pidfd_open(process)] = process, socket.socket(fileno=status)
            os.close(output)
            continue
        for child, (_, other) in children.items():
            os.close(child)
            other.close()
        _begin(requests.detach(), output, status)
        if not may_fork:
            os.set_inheritable(status, True)
            start_anew(name.decode())
        return name.decode()


def uses_cuda() -> bool:
    """Returns whether this process has begun to use CUDA."""
    return any(os.path.realpath(file) == CUDA for file in Path("/proc/self/fd").iterdir())


def _begin(requests: int, output: int, status: int) -> None:
    """Make a forked process what one that the server starts itself is.

    `status` stays open: the server sees by its end that the last of the processes is gone.
    """
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, requests), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    _send(socket.socket(fileno=os.dup(status)), Forked(os.getpid()))


def _tell_end(child: int, process: int, status: socket.socket) -> None:
    """Tell how a process ended, of which this is a descriptor."""
    os.close(child)
    _, end = os.waitpid(process, 0)
    _send(status, Exited(os.waitstatus_to_exitcode(end)))


def _send(status: socket.socket, message: Forked | Exited) -> None:
    with status, suppress(BrokenPipeError):  # nobody may be there to read it
        status.send(encode(message))
