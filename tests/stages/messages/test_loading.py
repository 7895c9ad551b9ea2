"""A stage's note of how far it is: written by any of its processes, read by the server."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from omnistage.stages.messages import loading as loading_module
from omnistage.stages.messages.loading import (
    PLACE,
    BytesRead,
    Loading,
    Phase,
    begin_loading,
    clear_loading,
    end_loading,
    own_note,
    read_loading,
    tell_loading,
    told_phase,
)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a stage `one` whose process this is, which has begun to load."""
    monkeypatch.setenv(PLACE, "")  # is set anew, and taken back after the test
    begin_loading(tmp_path, "one")
    return tmp_path


def test_what_is_told_is_read_and_the_last_counts(directory: Path) -> None:
    assert read_loading(directory, "one") == Loading(Phase.STARTING)
    tell_loading(Phase.READING, 1, 3)
    assert read_loading(directory, "one") == Loading(Phase.READING, 1, 3)
    assert told_phase() is Phase.READING
    assert read_loading(directory, "two") is None


def test_a_process_that_it_has_started_tells_too(directory: Path) -> None:
    program = (
        "from omnistage.stages.messages.loading import Phase, tell_loading;"
        "tell_loading(Phase.COMPILING)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert read_loading(directory, "one") == Loading(Phase.COMPILING)


def test_nothing_is_told_once_the_stage_is_ready(directory: Path) -> None:
    end_loading()
    tell_loading(Phase.READING, 1, 3)
    assert read_loading(directory, "one") is None
    assert own_note() is None
    assert list(directory.iterdir()) == []


def test_a_process_of_no_stage_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    tell_loading(Phase.READING)
    end_loading()
    assert list(tmp_path.iterdir()) == []
    assert told_phase() is None


def test_the_note_of_a_stage_that_has_ended_is_removed(directory: Path) -> None:
    clear_loading(directory, "one")
    clear_loading(directory, "one")
    assert read_loading(directory, "one") is None


def test_a_reader_never_finds_half_a_note(directory: Path) -> None:
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            tell_loading(Phase.READING, 1, 10**12)
            tell_loading(Phase.WARMING_UP)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    found = {read_loading(directory, "one") for _ in range(500)}
    done.set()
    for writer in writers:
        writer.join()
    whole = {Loading(), Loading(Phase.READING, 1, 10**12), Loading(Phase.WARMING_UP)}
    assert found <= whole
    assert [path.name for path in directory.iterdir()] == ["one.loading"]


def test_bytes_are_told_now_and_then_and_all_of_them_at_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(loading_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    read = BytesRead(30)
    assert read_loading(directory, "one") == Loading(Phase.READING, 0, 30)
    read.add(10)  # at once: not told
    assert read_loading(directory, "one") == Loading(Phase.READING, 0, 30)
    now[0] += 1
    read.add(10)
    assert read_loading(directory, "one") == Loading(Phase.READING, 20, 30)
    read.add(10)
    read.tell()
    assert read_loading(directory, "one") == Loading(Phase.READING, 30, 30)
