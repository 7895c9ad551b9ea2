"""How the videos of a request are watched: which frames of them a model gets, and their sound."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_FRAMES = 768
MAX_RATE = 30.0


@dataclass(frozen=True, slots=True)
class Watching:
    """Frames a second and their bounds, as Qwen's processors sample; `is_heard`: with its sound."""

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = MAX_FRAMES
    is_heard: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Watching":
        """As the body of a chat says for all of its videos."""
        frames = body.get("media_io_kwargs", {}).get("video", {})
        is_heard = bool(body.get("mm_processor_kwargs", {}).get("use_audio_in_video"))
        return cls(**frames, is_heard=is_heard)

    def num_frames(self, total: int, rate: float) -> int:
        """How many are sampled of so many, of which `rate` are a second (0: unknown)."""
        most = min(self.max_frames, total)
        wanted = total / rate * self.fps if rate > 0 else float(most)
        return math.floor(min(max(wanted, self.min_frames), most))


AS_IT_IS = Watching()  # of a request that does not say
