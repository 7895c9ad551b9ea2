"""Why a stage could not start, in a file of the run directory: its process is about to end."""

from contextlib import suppress
from pathlib import Path

from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES, shortened


def tell_start_failure(directory: Path, stage: str, reason: str) -> None:
    """Leave the reason, in one line; the first that a process of the stage leaves is kept.

    An engine's process fails before the stage's own, which then knows only that it failed.
    """
    said = shortened(" ".join(reason.split()), MAX_MESSAGE_BYTES)
    with (
        suppress(OSError),  # there is one already, or no folder: the log says it as well
        _file(directory, stage).open("x", encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.write(said)


def read_start_failure(directory: Path, stage: str) -> str:
    """The reason that the stage's last process left, if it did; only the first call gets it."""
    path = _file(directory, stage)
    try:
        reason = path.read_text("utf-8")
        path.unlink()
    except OSError:
        return ""
    return reason


def _file(directory: Path, stage: str) -> Path:
    return directory / f"{stage}.failure"
