"""Bounds of a request to a diffusion stage, by the operator's options or by the deadlines."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from math import isfinite

from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.work import MEGA, WorkBound
from omnistage.stages.diffusion.engine.speed import Speed
from omnistage.stages.diffusion.loading.engine_options import EngineOptions
from omnistage.stages.diffusion.request.arguments import STEPS, frame_rate
from omnistage.stages.diffusion.request.frames import default_frames, frame_step
from omnistage.stages.diffusion.request.media import keeps_size
from omnistage.stages.diffusion.request.sides import side_multiple
from omnistage.stages.diffusion.request.tasks import Tasks, arguments_of
from omnistage.stages.diffusion.request.videos import output_kind

logger = logging.getLogger(__name__)

# Only what would surely be late is refused: a warm-up is short, and other processes may slow it.
MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class BoundOptions(EngineOptions):
    """Engine arguments: the largest request, in megapixels at once, and those times its steps."""

    max_megapixels: float | None = None
    max_megapixel_steps: float | None = None

    def __post_init__(self) -> None:
        for name in self.names():
            value = getattr(self, name)
            is_number = type(value) in (int, float) and isfinite(value) and value > 0
            if value is not None and not is_number:
                raise ValueError(f"{name}: must be a number above 0, not {value!r}")

    def bound(self, tasks: Tasks, speed: Speed | None, deadlines: Deadlines) -> WorkBound:
        """With what requests get that do not say it. The operator's word wins over the measure."""
        pipeline = tasks.first.pipeline
        known = arguments_of(pipeline)
        megapixels, reason = self.max_megapixels, "max_megapixels"
        if megapixels is None and speed is not None:
            megapixels, reason = _within(speed, deadlines)
            logger.info("a request may have %.3g megapixels at once (%s)", megapixels, reason)
        is_video = output_kind(pipeline) == "video"
        width, height = (_default_side(pipeline, known, name) for name in ("width", "height"))
        edits = tasks.of("image") or tasks.of("image", "mask")
        return WorkBound(
            megapixels,
            self.max_megapixel_steps,
            reason if megapixels is not None else "",
            width,
            height,
            default_frames(pipeline) if is_video else 1,
            _default(known, STEPS),
            edits is not None and keeps_size(edits, "image"),
            side_multiple(pipeline),
            frame_rate(pipeline, {}),
            frame_step(pipeline),
        )


def _within(speed: Speed, deadlines: Deadlines) -> tuple[float, str]:
    """Megapixels that are not surely late, and why."""
    first_s, next_s = deadlines.first_chunk_s, deadlines.next_chunk_s
    pixels = speed.max_pixels(MARGIN * max(first_s, next_s), MARGIN * next_s)
    took = f"{speed.longest_s:.2g} s for {speed.pixels / MEGA:.2g} in the warm-up"
    reason = f"its deadlines are {first_s:g} and {next_s:g} s; it took {took}"
    return max(pixels, speed.pixels) / MEGA, reason


def _default(known: Mapping[str, Parameter], name: str) -> int | None:
    value = known[name].default if name in known else None
    return value if type(value) is int else None


def _default_side(pipeline: object, known: Mapping[str, Parameter], name: str) -> int | None:
    """Returns the side that most pipelines of Diffusers have; None where the call finds it out."""
    side = _default(known, name)
    if side is not None:
        return side
    samples = getattr(pipeline, "default_sample_size", None)
    if samples is None:
        samples = getattr(
            getattr(getattr(pipeline, "unet", None), "config", None), "sample_size", None
        )
    scale = getattr(pipeline, "vae_scale_factor", None)
    return samples * scale if type(samples) is int and type(scale) is int else None
