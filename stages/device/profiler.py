"""torch's profiler, started and stopped while a stage serves."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.worker.failure import RequestError

PROFILE = ("start_profile", "stop_profile")  # the commands
NO_FOLDER = "its engine has no profile_folder"


class Profiler:
    """Writes traces into a folder: operators of the one thread that calls, kernels of all."""

    def __init__(self, folder: Path, stage: str) -> None:
        self._folder = folder
        self._stage = stage
        self._running: Any = None
        self._file = folder

    def start(self, prefix: str | None) -> JsonMap:
        """Begin; the `file` in which the trace will be.

        RequestError if one runs already, or the folder cannot be made.
        """
        if self._running is not None:
            raise already_profiling()
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
        name = self._stage if prefix is None else f"{prefix}-{self._stage}"
        self._file = self._folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json.gz"
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        running = profile(activities=activities)
        running.start()
        self._running = running
        return {"file": str(self._file)}

    def stop(self) -> JsonMap:
        """End and write the trace; its `file`.

        RequestError if none runs, or the trace cannot be written.
        """
        if self._running is None:
            raise not_profiling()
        running, self._running = self._running, None
        with self._writing():
            running.stop()
            running.export_chrome_trace(str(self._file))
        return {"file": str(self._file)}

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """RequestError for what the file system refuses."""
        try:
            yield
        except OSError as error:
            why = f"{self._folder}: {error.strerror or error}"
            raise RequestError(500, why, code="profile_not_written") from error


def already_profiling() -> RequestError:
    """The refusal of a second start."""
    return RequestError(409, "a profile runs already; stop it first", code="profiling")


def not_profiling() -> RequestError:
    """The refusal of a stop without a start."""
    return RequestError(409, "no profile runs; start one first", code="not_profiling")
