"""How the videos of a request are watched: which frames of them a model gets, and their sound."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omnistage.stages.messages.to_gateway import Sampler

MAX_FRAMES = 768
MAX_RATE = 30.0
SLICE = 2  # frames of a Qwen2-VL's patch in time
UNIFORM_FRAMES = 32  # vLLM's, of models without a sampler of their own

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Watching:
    """Frames a second and their bounds, as Qwen's processors sample; `is_heard`: with its sound.

    `num_frames` is the most of a model that samples without regard to time; -1: all.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = MAX_FRAMES
    is_heard: bool = False


AS_IT_IS = Watching()  # of a request that does not say


@dataclass(frozen=True, slots=True)
class FrameChooser:
    """Chooses frames as transformers' processor of a model does, or as vLLM does for it.

    `options`: those of the stage's operator; a request that says something has the last word.
    """

    sampler: Sampler
    options: Mapping[str, float]

    def indices(self, total: int, rate: float, watching: Watching) -> Indices:
        """Return the numbers of the frames, ascending, of so many with `rate` a second."""
        return SAMPLERS[self.sampler](total, rate, watching, self.options)


def _qwen2_vl(total: int, rate: float, watching: Watching, _: Mapping[str, float]) -> Indices:
    """Math: Qwen2VLVideoProcessor.sample_frames of transformers, which steps in float32."""
    most = min(watching.max_frames, total) // SLICE * SLICE
    wanted = total / rate * min(watching.fps, MAX_RATE)
    count = math.floor(min(max(wanted, watching.min_frames), most) / SLICE) * SLICE
    step = total / count
    steps = (np.arange(math.ceil(total / step)) * step).astype(np.float32)
    return np.minimum(steps.astype(np.int64), total - 1)


def _qwen3_vl(total: int, rate: float, watching: Watching, _: Mapping[str, float]) -> Indices:
    """Math: Qwen3VLVideoProcessor.sample_frames of transformers."""
    wanted = int(total / rate * min(watching.fps, MAX_RATE))
    count = min(max(wanted, watching.min_frames), watching.max_frames, total)
    return np.linspace(0, total - 1, count).round().astype(np.int64)


def _uniform(total: int, rate: float, _: Watching, options: Mapping[str, float]) -> Indices:
    """Math: vLLM's VideoBackend, for models that it knows no sampler of."""
    most, fps = options.get("num_frames", UNIFORM_FRAMES), options.get("fps", -1)
    count = total if most <= 0 else min(int(most), total)
    if fps > 0:
        count = min(count, math.floor(total / rate * fps))
    return np.linspace(0, total - 1, max(1, count), dtype=np.int64)


SAMPLERS: Mapping[Sampler, Callable[[int, float, Watching, Mapping[str, float]], Indices]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen3_vl": _qwen3_vl,
    "uniform": _uniform,
}
