"""torch's profiler, started and stopped while a stage serves."""

import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from omnistage.stages.worker.failure import RequestError


class Profiler:
    """Writes traces into a folder. For one thread: what that thread does is recorded."""

    def __init__(self, folder: Path, stage: str) -> None:
        self._folder = folder
        self._stage = stage
        self._running: Any = None
        self._file = folder

    def start(self, prefix: str | None) -> Path:
        """Begin; where the trace will be."""
        if self._running is not None:
            raise RequestError(409, "a profile runs already; stop it first", code="profiling")
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{prefix or self._stage}-{time.strftime('%Y%m%d-%H%M%S')}.json.gz"
        self._file = self._folder / name
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(activities=activities)
        self._running.start()
        return self._file

    def stop(self) -> Path:
        """End and write the trace."""
        if self._running is None:
            raise RequestError(409, "no profile runs; start one first", code="not_profiling")
        running, self._running = self._running, None
        running.stop()
        running.export_chrome_trace(str(self._file))
        return self._file
