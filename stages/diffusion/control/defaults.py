"""Defaults of an operator for fields that requests to a diffusion stage do not send."""

import math
from dataclasses import dataclass, field, replace

from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stage_configs.work import SHARE_OF_STEPS, WorkBound
from omnistage.stages.diffusion.loading.engine_options import EngineOptions
from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.arguments import FIELDS, STEPS, argument_of
from omnistage.stages.diffusion.request.tasks import arguments_of

SIDES = ("width", "height")
COUNTS = (*SIDES, STEPS, "num_frames", "layers", "resolution")
TEXTS = ("negative_prompt",)


@dataclass(frozen=True, slots=True)
class DefaultOptions(EngineOptions):
    """Engine argument: fields of requests with the values that are used where they are not sent.

    For a model that was trained for other values than its pipeline's class has as defaults, such as
    few steps or small pictures.
    """

    defaults: JsonMap = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.defaults.items():
            if name not in FIELDS:
                raise ValueError(f"defaults.{name}: unknown; allowed: {', '.join(sorted(FIELDS))}")
            if name in TEXTS:
                allowed, is_right = "a string", isinstance(value, str)
            elif name in COUNTS:
                allowed, is_right = "an integer above 0", type(value) is int and value > 0
            else:
                allowed, is_right = "a number", type(value) in (int, float)
            if not is_right:
                raise ValueError(f"defaults.{name}: must be {allowed}, not {value!r}")

    def check(self, pipeline: PipelineCall) -> None:
        """Raises ValueError for a default that a pipeline does not take."""
        known = arguments_of(pipeline)
        unknown = sorted(name for name in self.defaults if argument_of(known, name) is None)
        if unknown:
            raise ValueError(f"defaults.{unknown[0]}: this pipeline takes no {unknown[0]}")

    def completed(self, body: JsonMap, *, has_image: bool) -> Json:
        """Returns a request's body with what it does not ask for.

        An edited image keeps its size.
        """
        found = {
            name: value
            for name, value in self.defaults.items()
            if body.get(name) is None and not (has_image and name in SIDES)
        }
        share = SHARE_OF_STEPS.get(body.get("quality") or "")
        if STEPS in found and share is not None:
            found[STEPS] = math.ceil(share * found[STEPS])
        return {**body, **found}

    def applied(self, bound: WorkBound) -> WorkBound:
        """Returns a bound with what requests get that do not ask for it."""
        known = {"steps": STEPS, **{name: name for name in (*SIDES, "num_frames")}}
        new = {name: self.defaults[key] for name, key in known.items() if key in self.defaults}
        return replace(bound, **new)

    def warm_up(self) -> Json:
        """Returns the sides of the pictures that come before the first request."""
        return {name: self.defaults[name] for name in SIDES if name in self.defaults}
