"""The reason of a stage that could not start, from one process to the other."""

from pathlib import Path

import pytest

from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES
from omnistage.stages.messages.start_failure import read_start_failure, tell_start_failure


def told(directory: Path, reason: str) -> str:
    tell_start_failure(directory, "one", reason)
    return read_start_failure(directory, "one")


@pytest.mark.parametrize(
    ("reason", "read"),
    [
        ("the weights\n do not fit", "the weights do not fit"),
        ("half a pair \ud800", r"half a pair \ud800"),
    ],
)
def test_the_reason_is_one_line(reason: str, read: str, tmp_path: Path) -> None:
    assert told(tmp_path, reason) == read


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    assert 0 < len(told(tmp_path, "x" * 9999).encode()) <= MAX_MESSAGE_BYTES


def test_a_reason_is_read_once_and_is_its_own_stage_s(tmp_path: Path) -> None:
    assert told(tmp_path, "a") == "a"
    assert read_start_failure(tmp_path, "one") == ""
    tell_start_failure(tmp_path, "one", "b")
    assert read_start_failure(tmp_path, "two") == ""


def test_the_first_reason_is_kept_until_it_is_read(tmp_path: Path) -> None:
    tell_start_failure(tmp_path, "one", "the engine's")
    assert told(tmp_path, "the stage's, of the engine's end") == "the engine's"
    assert told(tmp_path, "the next start's") == "the next start's"


def test_a_directory_that_is_gone_does_not_hide_the_error(tmp_path: Path) -> None:
    assert told(tmp_path / "gone", "a") == ""
