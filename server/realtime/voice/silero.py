"""Silero's detector of speech: its ONNX file by onnxruntime, in one thread for all sessions.

The package is never imported: that imports torch, and sets its threads.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.server.realtime.voice.detectors import Probabilities
from omnistage.server.realtime.voice.listening import HEARING_RATE_HZ, Frames
from omnistage.stage_configs.onnx_telemetry import keep_onnxruntime_silent

CONTEXT_SAMPLES = 64  # of the frame before, which the model reads with each


def silero_file() -> Path | None:
    """Return the model's file; None where the extra `omnistage[realtime]` is not installed."""
    found = find_spec("silero_vad")
    if found is None or find_spec("onnxruntime") is None:
        return None
    for folder in found.submodule_search_locations or ():
        path = Path(folder) / "data" / "silero_vad.onnx"
        if path.is_file():
            return path
    return None


class SileroPool:
    """One model for all sessions: frames that wait at the same time are one batch."""

    def __init__(self, path: Path) -> None:
        keep_onnxruntime_silent()
        import onnxruntime  # of the extra

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._model: Any = onnxruntime.InferenceSession(str(path), options, providers=providers)
        self._thread = ThreadPoolExecutor(1, "speech")
        self._waiting: list[DetectionJob] = []
        self._running: asyncio.Task[None] | None = None

    def detector(self) -> "SileroDetector":
        """Make the detector of one session."""
        return SileroDetector(self)

    async def judge(self, detector: "SileroDetector", frames: Frames) -> Probabilities:
        """Return how likely each frame of a session is speech."""
        loop = asyncio.get_running_loop()
        job = DetectionJob(detector, frames, loop.create_future())
        self._waiting.append(job)
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run_all())
        return await job.result

    async def _run_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            jobs, self._waiting = self._waiting, []
            running = loop.run_in_executor(self._thread, self._run, jobs)
            await asyncio.wait([running])
            failure = running.exception()
            for number, job in enumerate(jobs):
                if job.result.done():  # its session has ended
                    continue
                if failure is not None:
                    job.result.set_exception(failure)
                else:
                    job.result.set_result(running.result()[number])

    def _run(self, jobs: Sequence["DetectionJob"]) -> list[Probabilities]:
        """Judge the first frame of each session, then the second of those that have one."""
        results = [np.zeros(len(job.frames), np.float32) for job in jobs]
        for index in range(max(len(job.frames) for job in jobs)):
            chosen = [number for number, job in enumerate(jobs) if index < len(job.frames)]
            detectors = [jobs[number].detector for number in chosen]
            frames = np.stack([jobs[number].frames[index] for number in chosen])
            context = np.stack([one.context for one in detectors])
            given = np.concatenate([context, frames], axis=1)
            state = np.stack([one.state for one in detectors], axis=1)
            rate = np.array(HEARING_RATE_HZ, np.int64)
            output, state = self._model.run(None, {"input": given, "state": state, "sr": rate})
            for place, number in enumerate(chosen):
                results[number][index] = output[place, 0]
                detectors[place].state = state[:, place]
                detectors[place].context = given[place, -CONTEXT_SAMPLES:]
        return results

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)


class SileroDetector:
    """The model's memory of one session: its state, and the end of the last frame."""

    def __init__(self, pool: SileroPool) -> None:
        self._pool = pool
        self.state = np.zeros((2, 128), np.float32)
        self.context = np.zeros(CONTEXT_SAMPLES, np.float32)

    async def probabilities(self, frames: Frames) -> Probabilities:
        """Return how likely each frame is speech."""
        if not len(frames):
            return np.zeros(0, np.float32)
        return await self._pool.judge(self, frames)


class DetectionJob:
    """Frames of one session that wait for the model."""

    def __init__(
        self, detector: SileroDetector, frames: Frames, result: "asyncio.Future[Probabilities]"
    ) -> None:
        self.detector = detector
        self.frames = frames
        self.result = result
