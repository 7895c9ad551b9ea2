"""Real processes: what they print is logged, and nothing of them is left."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest
from support.waiting import until

from omnistage.connectors.sweep import make_run_directory
from omnistage.server.runtime.processes.process import StageLog, StageProcess

SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]


def process(script: str) -> StageProcess:
    return StageProcess("thinker", Path(), [sys.executable, "-c", script])


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "Z"


async def test_its_lines_are_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = process("import sys; print('one\\rtwo'); print('three', file=sys.stderr, end='')")
    await stage.start()
    assert await stage.wait() == "exit code 0"
    await stage.stop(1)
    assert caplog.messages == ["one", "two", "three"]
    assert [getattr(record, "stage", None) for record in caplog.records] == ["thinker"] * 3


async def test_its_lines_keep_their_level_and_those_that_follow_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "omnistage.server.runtime.processes.process")
    lines = [
        ("nothing yet", logging.INFO),
        ("WARNING 11-22 08:00:00 [fit.py:1] of vLLM", logging.WARNING),
        ("its second line", logging.WARNING),
        ("(EngineCore pid=7) INFO 11-22 08:00:00 [core.py:1] of its engine", logging.INFO),
        ("INFORMATION is no level", logging.INFO),
        ("Traceback (most recent call last):", logging.ERROR),
        ("  File x", logging.ERROR),
        ("DEBUG said on purpose", logging.DEBUG),
    ]
    stage = process("print(" + repr("\n".join(text for text, _ in lines)) + ")")
    await stage.start()
    await stage.wait()
    await stage.stop(1)
    assert [(record.message, record.levelno) for record in caplog.records] == lines


async def test_it_has_the_environment_that_it_is_given(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script = "import os; print(os.environ['OMNISTAGE_LOG_LEVEL'].lower())"
    command = [sys.executable, "-c", script]
    stage = StageProcess("thinker", Path(), command, {"OMNISTAGE_LOG_LEVEL": "DEBUG"})
    await stage.start()
    await stage.wait()
    await stage.stop(1)
    assert caplog.messages == ["debug"]


async def test_how_it_ended_has_the_reason_that_it_left(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from omnistage.stages.worker.start_error import start_failure_told
with start_failure_told(Path(sys.argv[1]), "thinker"):
    raise ValueError("it does not fit")
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    stage = StageProcess("thinker", tmp_path, command)
    await stage.start()
    assert await stage.wait() == "exit code 1: it does not fit"
    await stage.stop(1)


FAILS = """
import logging, sys, time
from pathlib import Path
from omnistage.stages.messages.loading import begin_loading, end_loading
from omnistage.stages.worker.start_error import start_failure_told
logging.basicConfig(format="%(levelname)s %(message)s")
begin_loading(Path(sys.argv[1]), "thinker")
if sys.argv[2] == "ready":
    end_loading()
if sys.argv[2] == "hangs":
    logging.warning("it hangs")
    time.sleep(3600)
logging.error("(EngineCore pid=7) EngineCore failed to start.")
print("(EngineCore pid=7) ERROR 11-22 08:00:00 [core.py:1] Traceback (most recent call last):")
print("(EngineCore pid=7) ERROR 11-22 08:00:00 [core.py:1] KeyError: 1", flush=True)
logging.warning("between")
with start_failure_told(Path(sys.argv[1]), "thinker"):
    raise ValueError("it does not fit")
"""


async def failing(
    how: str, run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> StageProcess:
    """A stage whose start fails, hangs, or that fails after its start."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    run.mkdir()  # noqa: ASYNC240
    stage = StageProcess("thinker", run, [sys.executable, "-c", FAILS, str(run), how])
    await stage.start()
    return stage


async def test_a_traceback_of_a_start_is_in_a_file_that_is_named_and_not_on_the_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "omnistage.server.runtime.processes.process")
    stage = await failing("starts", tmp_path / "run", tmp_path / "cache", monkeypatch)
    assert await stage.wait() == "exit code 1: it does not fit"
    await stage.stop(1)
    kept = tmp_path / "cache" / "omnistage" / "logs" / "thinker.log"
    shown = [one.message for one in caplog.records if one.levelno > logging.DEBUG]
    assert shown == [
        "ERROR (EngineCore pid=7) EngineCore failed to start.",
        "WARNING between",
        f"what stage thinker said before it ended is in {kept}",
    ]
    hidden = [one.message for one in caplog.records if one.levelno == logging.DEBUG]
    assert hidden[0].endswith("Traceback (most recent call last):")
    assert hidden[1].endswith("KeyError: 1")
    assert hidden[-1] == "ValueError: it does not fit"
    assert set(kept.read_text().splitlines()) == {*hidden, *shown[:2]}
    assert list((tmp_path / "run").iterdir()) == []


async def test_a_traceback_of_a_stage_that_served_is_on_the_terminal_and_in_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    stage = await failing("ready", tmp_path / "run", tmp_path / "cache", monkeypatch)
    assert await stage.wait() == "exit code 1: it does not fit"
    await stage.stop(1)
    assert caplog.messages[-1] == "ValueError: it does not fit"
    assert not (tmp_path / "cache").exists()


async def test_a_stage_that_is_stopped_while_it_loads_leaves_no_log_and_no_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    stage = await failing("hangs", tmp_path / "run", tmp_path / "cache", monkeypatch)
    await until(lambda: caplog.messages == ["WARNING it hangs"])
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thinker.loading"]
    await stage.stop(0)
    assert list((tmp_path / "run").iterdir()) == []
    assert not (tmp_path / "cache").exists()


async def test_a_log_that_cannot_be_kept_does_not_hide_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("no folder")
    stage = await failing("starts", tmp_path / "run", tmp_path / "cache", monkeypatch)
    assert await stage.wait() == "exit code 1: it does not fit"
    await stage.stop(1)
    assert caplog.messages[-1].startswith("the log of stage thinker cannot be kept: ")


async def test_it_may_end_by_itself() -> None:
    stage = process("import sys; sys.exit(3)")
    await stage.start()
    await stage.stop(60)
    assert await stage.wait() == "exit code 3"
    assert not stage.is_alive


async def test_it_is_terminated_after_its_grace() -> None:
    stage = StageProcess("thinker", Path(), SLEEP)
    await stage.start()
    assert stage.is_alive
    await stage.stop(0.05)
    assert await stage.wait() == "signal SIGTERM"


async def test_a_wait_for_the_end_of_its_output_can_be_cancelled_as_that_comes() -> None:
    log = StageLog("thinker")
    waiting = asyncio.create_task(log.ended(30))
    await asyncio.sleep(0)
    log.connection_lost(None)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()


async def test_its_descendants_end_with_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = process(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(3600)"
    )
    await stage.start()
    await until(lambda: bool(caplog.messages))
    child = int(caplog.messages[0])
    assert not is_gone(child)
    assert stage.pid is not None
    os.kill(stage.pid, 9)
    assert await stage.wait() == "signal SIGKILL"
    await until(lambda: is_gone(child))
    await stage.stop(0)


async def test_a_killed_stage_leaves_no_semaphore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's resource tracker outlives the kill for as long as it takes to clean up."""
    script = (
        "import multiprocessing, time\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "print(lock._semlock.name, flush=True); time.sleep(3600)"
    )
    names: list[str] = []
    monkeypatch.setattr(StageLog, "_write", lambda _, line: names.append(line.decode()))
    stage = process(script)
    await stage.start()
    await until(lambda: any(names))
    path = Path("/dev/shm") / f"sem.{names[0].strip().removeprefix('/')}"
    assert path.exists()
    stage.kill()
    await stage.stop(0)
    await until(lambda: not path.exists())
    await until(lambda: not stage._members())


async def test_temporary_files_go_to_the_runs_scratch_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = make_run_directory(tmp_path, tmp_path)
    script = "import tempfile; print(tempfile.gettempdir())"
    stage = StageProcess("thinker", run.path, [sys.executable, "-c", script])
    await stage.start()
    await stage.wait()
    await stage.stop(1)
    assert caplog.messages == [str(run.scratch)]
    run.remove()
