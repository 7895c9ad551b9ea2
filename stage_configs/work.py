"""How much one request may ask a stage for, judged by the gateway before anything begins."""

import math
from dataclasses import dataclass

from omnistage.stage_configs.json_types import JsonMap

# Of the steps that a pipeline takes by default.
SHARE_OF_STEPS = {"low": 0.4, "medium": 0.7}
SIDE_STEP, MAX_SIDE = 16, 4096
MEGA = 1e6


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request cannot be made: the field to blame, and a sentence.

    `is_too_much`: it could be made if it were less.
    """

    param: str
    message: str
    is_too_much: bool = True


@dataclass(frozen=True, slots=True)
class WorkBound:
    """`max_megapixels`: of all pictures or frames of a request; `max_megapixel_steps`: times steps.

    None: any. `reason` says where the first comes from. The rest is what a request gets that does
    not say it, if the stage knows; `keeps_size`: what is made from a picture has its size.
    `side_multiple`: widths and heights are multiples of it. `num_frames`: None where the stage does
    not know how many it makes by default. `fps`: of the video, in frames per second, 0 if its
    pipeline knows none; `frame_step`: numbers of frames are k times it, and one.
    """

    max_megapixels: float | None = None
    max_megapixel_steps: float | None = None
    reason: str = ""
    width: int | None = None
    height: int | None = None
    num_frames: int | None = 1
    steps: int | None = None
    keeps_size: bool = False
    side_multiple: int = 1
    fps: float = 0
    frame_step: int = 1

    def frames_of(self, seconds: float, fps: float) -> int:
        """Returns the nearest number of frames that is made of so many seconds; at least 1."""
        step = self.frame_step
        if step == 1:
            return max(1, round(seconds * fps))
        return max(0, round((seconds * fps - 1) / step)) * step + 1

    def refusal(self, body: JsonMap, picture: tuple[int, int] | None = None) -> Refusal | None:
        """Returns why a request is too much, or of a size that is not made; empty if it is fine.

        `picture`: width and height of the one to be edited.
        """
        if (wrong := self._wrong_size(body)) is not None:
            return wrong
        if (unknown := self._unknown_frames(body)) is not None:
            return unknown
        asked = _Asked.of(body, picture, self)
        if asked is None:
            return None
        limit = self.max_megapixels
        if limit is not None and asked.megapixels > limit:
            what = f"{asked.what} {asked.verb} {_said(asked.megapixels)} megapixels at once"
            allowed = f"at most {_said(limit)} ({self.reason})"
            return Refusal(asked.blamed(limit), f"{what}; this server makes {allowed}.")
        limit = self.max_megapixel_steps
        if limit is not None and asked.steps and asked.megapixels * asked.steps > limit:
            work = _said(asked.megapixels * asked.steps)
            what = f"{asked.what} in {asked.steps} steps {asked.verb} {work} megapixel-steps"
            allowed = f"at most {_said(limit)} (max_megapixel_steps)"
            return Refusal("num_inference_steps", f"{what}; this server makes {allowed}.")
        return None

    def _unknown_frames(self, body: JsonMap) -> Refusal | None:
        """Returns the refusal of a video whose length nobody knows, where that has a bound."""
        is_bound = (self.max_megapixels, self.max_megapixel_steps) != (None, None)
        if not is_bound or self.num_frames is not None or body.get("num_frames"):
            return None
        message = "is needed: this model does not say how many frames it makes without it."
        return Refusal("num_frames", message, False)

    def _wrong_size(self, body: JsonMap) -> Refusal | None:
        step = self.side_multiple
        sides = {name: body[name] for name in ("width", "height") if body.get(name) is not None}
        wrong = [name for name, side in sides.items() if side % step]
        if not wrong:
            return None
        nearest = "x".join(str(max(1, round(side / step)) * step) for side in sides.values())
        given = "x".join(map(str, sides.values()))
        message = f"{given} is not made by this model: each side must be a multiple of {step}"
        param = "size" if body.get("size") is not None else wrong[0]
        return Refusal(param, f"{message}, such as {nearest}.", False)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The work of a request, with defaults where it leaves something out."""

    width: int
    height: int
    num_frames: int
    num_pictures: int
    steps: int | None
    size_param: str

    @classmethod
    def of(
        cls, body: JsonMap, picture: tuple[int, int] | None, bound: WorkBound
    ) -> "_Asked | None":
        """None where the size cannot be known."""
        width, height = body.get("width"), body.get("height")
        is_video = "num_frames" in body
        param = "size" if body.get("size") or not is_video else "width"
        if width is None and height is None and picture is not None and bound.keeps_size:
            param = "image"
            width, height = fitting_size(*picture)
        width, height = width or bound.width, height or bound.height
        if width is None or height is None:
            return None
        num_prompts = 1 if isinstance(body["prompt"], str) else len(body["prompt"])
        frames = body.get("num_frames") or bound.num_frames or 1
        num_pictures = (body.get("n") or 1) * num_prompts
        return cls(width, height, frames, num_pictures, _steps(body, bound), param)

    @property
    def megapixels(self) -> float:
        """Returns the megapixels of all images or frames."""
        return self.width * self.height * self.num_frames * self.num_pictures / MEGA

    @property
    def what(self) -> str:
        """In words."""
        size = f"{self.width}x{self.height}"
        if self.num_frames > 1:
            return f"{self.num_frames} frames of {size}"
        return f"{self.num_pictures} pictures of {size}" if self.num_pictures > 1 else size

    @property
    def verb(self) -> str:
        """That fits to `what`."""
        return "are" if self.num_frames * self.num_pictures > 1 else "is"

    def blamed(self, limit: float) -> str:
        """The count, if one picture or frame would be allowed; else its size."""
        if self.width * self.height / MEGA > limit:
            return self.size_param
        return "num_frames" if self.num_frames > 1 else "n"


def _steps(body: JsonMap, bound: WorkBound) -> int | None:
    steps: int | None = body.get("num_inference_steps")
    if steps is None and bound.steps is not None:
        steps = math.ceil(SHARE_OF_STEPS.get(body.get("quality") or "", 1) * bound.steps)
    strength = body.get("strength")  # an edit leaves out the first steps
    return steps if steps is None or strength is None else max(1, int(steps * strength))


def _said(number: float) -> str:
    """Three digits; all of those before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def fitting_size(width: int, height: int) -> tuple[int, int]:
    """The nearest size below that pipelines make."""
    scale = min(1.0, MAX_SIDE / max(width, height))
    return _rounded(width * scale), _rounded(height * scale)


def _rounded(side: float) -> int:
    return max(SIDE_STEP, int(side) // SIDE_STEP * SIDE_STEP)
