"""Judges by its sound whether a turn has ended: an ONNX file that the operator names.

The file takes the last seconds of a turn, zeros before it: float32 [1, 80, frames] of Whisper's
log-mel (100 frames a second, 8 s as smart-turn has them), or float32 [1, samples] at 16 kHz. It
returns one number, the probability that the speaker is done.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.server.realtime.voice.listening import HEARING_RATE_HZ
from omnistage.server.realtime.voice.log_mel import HOP, NUM_MELS, Floats, log_mel
from omnistage.stage_configs.onnx_telemetry import keep_onnxruntime_silent

logger = logging.getLogger(__name__)

DEFAULT_S = 8.0  # of audio, where the file takes any length
LIKELY = 0.5


class TurnJudge:
    """The judge of all sessions, in one thread."""

    def __init__(self, path: Path) -> None:
        """Load a file; ValueError if it is no such model, ImportError without onnxruntime."""
        keep_onnxruntime_silent()
        import onnxruntime  # of the extra

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._model: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001 - its classes have no base of their own
            raise ValueError(f"{path} is not an ONNX model: {error}") from None
        given = self._model.get_inputs()
        shape = given[0].shape if len(given) == 1 else []
        self._takes_mels = len(shape) == 3 and shape[1] == NUM_MELS
        if not self._takes_mels and len(shape) != 2:
            shapes = [one.shape for one in given]
            allowed = f"[1, {NUM_MELS}, frames] or [1, samples]"
            raise ValueError(f"{path} takes {shapes}; allowed is one input, {allowed}")
        self._name = given[0].name
        length = shape[-1] if isinstance(shape[-1], int) else None
        hop = HOP if self._takes_mels else 1
        self.num_samples = round(DEFAULT_S * HEARING_RATE_HZ) if length is None else length * hop
        likely = self._run(np.zeros(self.num_samples, np.float32))
        if not 0 <= likely <= 1:
            raise ValueError(f"{path} returns {likely:g} for silence, which is no probability")
        self._thread = ThreadPoolExecutor(1, "turns")

    async def is_done(self, samples: Floats) -> bool:
        """Return whether the speaker of a turn's samples, float32 [n] at 16 kHz, is done."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._run, samples) >= LIKELY
        except Exception:
            logger.exception("a turn could not be judged; its silence ends it")
            return False

    def _run(self, samples: Floats) -> float:
        given = np.zeros(self.num_samples, np.float32)
        last = samples[-self.num_samples :]
        given[self.num_samples - len(last) :] = last
        features = log_mel(given) if self._takes_mels else given
        made = np.asarray(self._model.run(None, {self._name: features[None]})[0])
        if made.size != 1:
            raise ValueError(f"the turn model returns {made.shape}; allowed is one number")
        return float(made.reshape(-1)[0])

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)
