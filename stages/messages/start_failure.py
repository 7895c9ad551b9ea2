"""Why a stage could not start, in a file of the run directory: its process is about to end."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES, shortened


@contextmanager
def start_failure_told(directory: Path, stage: str) -> Iterator[None]:
    """What is raised inside is the reason why the stage's process will end."""
    try:
        yield
    except Exception as error:
        # A ValueError says what is wrong with the configuration, in words for the operator.
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        reason = shortened(" ".join(said.split()), MAX_MESSAGE_BYTES)
        with suppress(OSError):  # the log says it as well
            _file(directory, stage).write_text(reason, "utf-8", "backslashreplace")
        raise


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
