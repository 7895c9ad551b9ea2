"""The reason of a stage that could not start, from one process to the other."""

from pathlib import Path

import pytest

from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES
from omnistage.stages.messages.start_failure import read_start_failure, start_failure_told


def told(directory: Path, error: Exception) -> str:
    with pytest.raises(type(error)), start_failure_told(directory, "one"):
        raise error
    return read_start_failure(directory, "one")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("the weights\n do not fit"), "the weights do not fit"),
        (RuntimeError("no kernel"), "RuntimeError: no kernel"),
        (ValueError("half a pair \ud800"), r"half a pair \ud800"),
    ],
)
def test_the_reason_is_one_line(error: Exception, reason: str, tmp_path: Path) -> None:
    assert told(tmp_path, error) == reason


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    assert len(told(tmp_path, ValueError("x" * 9999)).encode()) <= MAX_MESSAGE_BYTES


def test_a_reason_is_read_once_and_is_its_own_stage_s(tmp_path: Path) -> None:
    assert told(tmp_path, ValueError("a")) == "a"
    assert read_start_failure(tmp_path, "one") == ""
    with pytest.raises(ValueError, match="b"), start_failure_told(tmp_path, "one"):
        raise ValueError("b")
    assert read_start_failure(tmp_path, "two") == ""


def test_what_starts_leaves_no_reason(tmp_path: Path) -> None:
    with start_failure_told(tmp_path, "one"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_gone_does_not_hide_the_error(tmp_path: Path) -> None:
    assert told(tmp_path / "gone", ValueError("a")) == ""
