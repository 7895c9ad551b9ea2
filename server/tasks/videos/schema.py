"""The fields of requests for videos, and what the stages get of them."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from omnistage.server.common.errors import invalid
from omnistage.server.tasks.chat.schema import Loras
from omnistage.server.tasks.images.extra import ExtraFields
from omnistage.server.tasks.images.schema import MAX_PROMPT, Scale, sides_of
from omnistage.stage_configs.declared.sampling import Count, Flag, Number, Seed
from omnistage.stage_configs.work import WorkBound

DEFAULT_FPS = 16.0  # of a pipeline that knows none
MAX_FRAMES = 1024
MIN_FPS, MAX_FPS = 1, 120
MAX_SECONDS = 3600
# In a form these are words; the others are JSON's numbers, booleans and objects, written out.
WORDS = frozenset({"prompt", "model", "size", "negative_prompt", "seconds"})
# What is not sent on under its own name.
NOT_SENT = frozenset({"model", "seed", "seconds", "size", "width", "height", "num_frames", "extra"})


def _number_of(value: object) -> object:
    """Read OpenAI's seconds, which are a number in a string."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Side = Annotated[Count, Field(ge=16, le=4096, multiple_of=2)]
Seconds = Annotated[Annotated[Number, Field(gt=0, le=MAX_SECONDS)], BeforeValidator(_number_of)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]


class VideoEditRequest(ExtraFields):
    """A video made from another, whose size and length it has; the pipeline has the last word."""

    ignored = frozenset({"user"})

    prompt: Prompt
    model: str | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    fps: Annotated[Count, Field(ge=MIN_FPS, le=MAX_FPS)] | None = None
    num_inference_steps: Annotated[Count, Field(ge=1, le=1000)] | None = None
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None
    strength: Annotated[Number, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    lora: Loras | None = None
    step_cache: Flag | None = None
    audio: Flag | None = None

    def to_fields(self, work: WorkBound) -> dict[str, Any]:
        """Return what the stages get, all but the seed; `work`: of the stage that makes videos.

        Raises ApiError for fields that contradict each other.
        """
        self.check()
        given = self.model_dump(exclude={*NOT_SENT, *(self.model_extra or {})})
        sides = {"size": None, "width": None, "height": None, "num_frames": None}
        return {**given, **sides, **({"extra": self.extra} if self.extra else {})}

    @property
    def given(self) -> dict[str, Any]:
        """Returns the fields that are given, as JSON has them."""
        return self.model_dump(exclude_none=True, exclude={"model", *(self.model_extra or {})})

    def name_of(self, field: str) -> str:
        """Return what the client calls a field that the stages get."""
        return field

    def rate(self, work: WorkBound) -> float:
        """Return the frames per second that are asked for, or that the pipeline makes."""
        return self.fps or work.fps or DEFAULT_FPS


class VideoRequest(VideoEditRequest):
    """A video of words, and perhaps of media; the pipeline itself refuses what it cannot make."""

    size: str | None = None
    width: Side | None = None
    height: Side | None = None
    seconds: Seconds | None = None
    num_frames: Annotated[Count, Field(ge=1, le=MAX_FRAMES)] | None = None

    def to_fields(self, work: WorkBound) -> dict[str, Any]:
        """Return what the stages get: seconds as frames, and a size as sides; raises ApiError."""
        width, height = sides_of(self.size, self.width, self.height)
        if any(side is not None and side % 2 for side in (width, height)):
            raise invalid("size", "must have even sides")
        size = None if self.size == "auto" else self.size
        sides = {"size": size, "width": width, "height": height}
        return {**super().to_fields(work), **sides, "num_frames": self._num_frames(work)}

    def name_of(self, field: str) -> str:
        """Return what the client calls a field that the stages get."""
        return "seconds" if field == "num_frames" and self.seconds is not None else field

    def _num_frames(self, work: WorkBound) -> int | None:
        if self.seconds is None:
            return self.num_frames
        if self.num_frames is not None:
            raise invalid("seconds", "says the same as num_frames: give one of them")
        rate = self.rate(work)
        num_frames = work.frames_of(self.seconds, rate)
        if num_frames > MAX_FRAMES:
            length = f"{self.seconds:g} s at {rate:g} frames per second are {num_frames} frames"
            raise invalid("seconds", f"is too long: {length}; at most {MAX_FRAMES}")
        return num_frames


class ExtensionRequest(VideoEditRequest):
    """A video that goes on: `seconds` are those that are added."""

    seconds: Seconds
