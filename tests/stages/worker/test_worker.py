"""The entry of a stage's process, and its end with its parent's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from omnistage.stages.worker.process.garbage import WHILE_IMPORTING
from omnistage.stages.worker.process.lifetime import PARENT, STAGE_MARK

IMPORTED = """
import ctypes, gc, runpy, sys
runpy.run_module("omnistage.stages.worker.worker", run_name="__mp_main__")
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
print(signal.value, "torch" in sys.modules, gc.get_threshold()[0])
"""


def test_an_engine_that_is_only_starting_is_tied_to_its_parent_and_collects_nothing() -> None:
    environment = {**os.environ, STAGE_MARK: "talker"}
    done = subprocess.run([sys.executable, "-c", IMPORTED], env=environment, capture_output=True)
    assert done.stdout.decode().split() == ["9", "False", str(WHILE_IMPORTING)], done.stderr


FORKED = """
import asyncio, ctypes, multiprocessing, signal, sys
from pathlib import Path
from types import ModuleType
from omnistage.stages.worker import worker

def tell(note):
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death))
    Path(note).write_text(str(death.value))
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.raise_signal(signal.SIGTERM)

async def fork(note):
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.set)
    child = multiprocessing.get_context("fork").Process(target=tell, args=(note,))
    child.start()
    child.join()
    await asyncio.sleep(0.05)  # what has come to the loop is handled before
    print("heard" if heard.is_set() else "undisturbed")

def run_stage(name, directory):
    asyncio.run(fork(directory / name))

stage_process = ModuleType("stage_process")
stage_process.run_stage = run_stage
sys.modules["omnistage.stages.worker.process.stage_process"] = stage_process
worker.main()
"""


def test_an_engine_that_is_forked_is_tied_to_its_parent_and_has_signals_of_its_own(
    tmp_path: Path,
) -> None:
    """As on a GPU, where vLLM forks and loads no plugin again."""
    arguments = ["--stage", "talker", "--run-directory", str(tmp_path)]
    command = [sys.executable, "-c", FORKED, *arguments, "--parent", str(os.getpid())]
    done = subprocess.run(command, capture_output=True)
    assert (tmp_path / "talker").read_text() == "9", done.stderr
    assert done.stdout.split() == [b"undisturbed"], done.stderr


# A stage that imports onnxruntime, as Diffusers does, and prints what it finds then.
WITH_ONNXRUNTIME = """
import os, sys
from importlib.util import find_spec
from types import ModuleType
from omnistage.stages.worker import worker

def run_stage(name, directory):
    if find_spec("onnxruntime") is not None:
        import onnxruntime
    print(os.environ.get("ORT_DISABLE_TELEMETRY"))

stage_process = ModuleType("stage_process")
stage_process.run_stage = run_stage
sys.modules["omnistage.stages.worker.process.stage_process"] = stage_process
worker.main()
"""


@pytest.mark.parametrize(("given", "found"), [(None, b"1"), ("1", b"1"), ("0", b"0")])
def test_a_stage_keeps_onnxruntime_from_reporting_unless_its_operator_lets_it(
    tmp_path: Path, given: str | None, found: bytes
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    own = {"HOME": str(home)} | ({} if given is None else {"ORT_DISABLE_TELEMETRY": given})
    kept = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in kept}
    arguments = ["--stage", "dit", "--run-directory", str(tmp_path), "--parent", str(os.getpid())]
    command = [sys.executable, "-c", WITH_ONNXRUNTIME, *arguments]
    done = subprocess.run(command, env=environment | own, capture_output=True)
    assert done.stdout.split() == [found], done.stderr
    if found == b"1":
        assert not list(home.rglob("*"))


# A child that takes a while before it asks to end with its parent, which is killed meanwhile.
SLOW_CHILD = """
import sys, time
from pathlib import Path
from omnistage.stages.worker.process.lifetime import end_with_parent
note = Path(sys.argv[1])
note.with_suffix(".begun").touch()
while not note.with_suffix(".orphan").exists():
    time.sleep(0.01)
end_with_parent()
note.touch()
"""
SHORT_LIVED = """
import os, subprocess, sys
from omnistage.stages.worker.process.lifetime import PARENT, end_with_parent
end_with_parent()
assert os.environ[PARENT] == str(os.getpid())
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]]).wait()
"""


def test_a_child_whose_parent_died_before_it_asked_does_not_outlive_it(tmp_path: Path) -> None:
    assert not has_outlived(tmp_path, names_its_parent=True)


def test_without_its_parents_id_it_would_have(tmp_path: Path) -> None:
    assert has_outlived(tmp_path, names_its_parent=False)


def has_outlived(folder: Path, *, names_its_parent: bool) -> bool:
    """Whether the child of a parent that is killed gets on."""
    note = folder / "lives"
    child = SLOW_CHILD
    if not names_its_parent:
        child = child.replace(
            "import sys, time", f"import sys, time, os; del os.environ['{PARENT}']"
        )
    environment = {**os.environ, STAGE_MARK: "talker"}
    command = [sys.executable, "-c", SHORT_LIVED, child, str(note)]
    with subprocess.Popen(command, env=environment) as parent:
        wait_until(note.with_suffix(".begun").exists)
        parent.kill()
    note.with_suffix(".orphan").touch()
    wait_until(lambda: note.exists() or not is_any_left(str(note)))
    return note.exists()


def is_any_left(argument: str) -> bool:
    """Whether a process runs with this argument, but for zombies, who have none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_a_process_between_two_of_ours_is_no_death() -> None:
    """A shell that starts a child for its parent has another id than the one that is named."""
    imported = "from omnistage.stages.worker.process.lifetime import end_with_parent"
    code = f"{imported}; end_with_parent(); print(1)"
    environment = {**os.environ, STAGE_MARK: "talker", PARENT: str(os.getpid())}
    command = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert done.stdout.split() == [b"1"], done.stderr
