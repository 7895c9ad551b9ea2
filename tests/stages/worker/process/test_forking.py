"""The process that forks stages: what it must not hold by then, and what the forked ones are."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from omnistage.stage_configs.families import KINDS
from omnistage.stages.messages.forked import Exited, Forked, decode
from omnistage.stages.worker.process import forking

CUDA_LIBRARY = "libcuda.so.1"
FIRST = "import ctypes; ctypes.CDLL('libcuda.so.1')"  # as a library that begins to use CUDA
IMPORTS = """
import os, sys, time
from pkgutil import resolve_name
from omnistage.stage_configs.families import KINDS
for kind in sys.argv[1:]:
    resolve_name(KINDS[kind].path)
import torch
if os.fork() == 0:
    os._exit(0)
os.wait()
while len(os.listdir("/proc/self/task")) > 1:  # a thread that was joined goes a moment later
    time.sleep(0.01)
print(torch.cuda.is_initialized(), "libcuda.so.1" in open("/proc/self/maps").read())
"""


def with_cuda(folder: Path) -> dict[str, str]:
    """An environment with a library that has CUDA's name."""
    (library,) = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.split()[-1].endswith("/libm.so.6")
    }
    shutil.copy(library, folder / CUDA_LIBRARY)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def said(code: str, *words: str, env: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
    return done.stdout.decode().split()[-2:]


def test_no_kinds_imports_begin_cuda_or_leave_threads_at_a_fork(tmp_path: Path) -> None:
    """A forked process could not use CUDA, and would wait for what such a thread has locked."""
    environment = with_cuda(tmp_path)
    assert said(IMPORTS, *KINDS, env=environment) == ["False", "False"]
    assert said(f"{FIRST}\n{IMPORTS}", env=environment) == ["False", "True"]


def test_cuda_is_known_by_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "device"
    device.touch()
    monkeypatch.setattr(forking, "CUDA", str(device))
    assert not forking.uses_cuda()
    with device.open():
        assert forking.uses_cuda()


FORKS = """
import os, socket, sys
import numpy.random
from omnistage.stages.worker.process import forking

def start_anew(stage):
    os.execv(sys.executable, [sys.executable, "-c", f"print('anew', {stage!r})"])

if sys.argv[1:]:
    forking.CUDA = os.path.realpath("/proc/self/fd/0")
stage = forking.fork_stages(socket.socket(fileno=0), start_anew)
print(stage, numpy.random.random())
"""


def forked(*names: str, uses_cuda: bool = False) -> list[tuple[str, str]]:
    """What these stages print, forked one after another; each must end well."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = ["cuda"] if uses_cuda else []
    command = [sys.executable, "-c", FORKS, *words]
    found = []
    with subprocess.Popen(command, stdin=theirs.fileno()) as process, theirs, ours:
        for name in names:
            reading, writing = os.pipe()
            status, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with told, status, os.fdopen(writing, "wb"), os.fdopen(reading, "rb") as output:
                socket.send_fds(ours, [name.encode()], [writing, told.fileno()])
                told.close()
                first, last = decode(status.recv(99)), decode(status.recv(99))
                assert isinstance(first, Forked)
                assert last == Exited(0)
                one, other = output.read1().decode().split()
                found.append((one, other))
        ours.close()
        assert process.wait() == 0
    return found


def test_forked_stages_draw_other_numbers() -> None:
    (one, first), (other, second) = forked("one", "other")
    assert (one, other) == ("one", "other")
    assert first != second


def test_stages_are_started_anew_where_an_import_has_begun_cuda() -> None:
    assert forked("one", "other", uses_cuda=True) == [("anew", "one"), ("anew", "other")]
