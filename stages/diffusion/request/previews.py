"""Previews of an image as if its steps ended now, by its pipeline's own code.

A preview is the request's own call once more, on a copy of its pipeline: what comes before the
steps (`encode_*`, `prepare_*latents`) returns what it returned the first time, the denoiser returns
zeros, and after the first step the latents are replaced and the others skipped, both as Diffusers'
callbacks may. So what comes after the steps unpacks and decodes them as it always does.
"""

import copy
import functools
import inspect
import logging
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from omnistage.stages.diffusion.pipeline import Pipeline
from omnistage.stages.diffusion.profiles.profile import PLAIN

logger = logging.getLogger(__name__)

ON_STEP = "callback_on_step_end"
# Their samples move on straight lines over sigma, to the predicted picture at 0.
STRAIGHT = (FlowMatchEulerDiscreteScheduler, EulerDiscreteScheduler)


class Previews:
    """Previews of one request: run its `pipeline`, and call `after_step` from its callback."""

    def __init__(
        self,
        pipeline: Pipeline,
        denoisers: Collection[str],
        arguments: Mapping[str, object],
        num_previews: int,
        before_steps: re.Pattern[str] = PLAIN.before_steps,
    ) -> None:
        """`denoisers`: the names of these components; `arguments` are the call's own.

        `before_steps`: the names of the methods that come before the steps.
        """
        self.pipeline = copy.copy(pipeline)
        self.pipeline.__class__ = _listening(pipeline.__class__, before_steps)
        self._results: dict[str, list[object]] = defaultdict(list)
        vars(self.pipeline)["heard"] = Recorder(self._results)
        self._denoisers = denoisers
        self._arguments = arguments
        self._num_previews = num_previews
        self._last: torch.Tensor | None = None

    def after_step(self, pipeline: Pipeline, step: int, latents: torch.Tensor) -> Any:
        """Returns what the call returns for the picture predicted after step `step` (from 0), if it
        is due.

        None where no preview is due or it cannot be made.
        """
        before, self._last = self._last, latents
        try:
            if step + 1 not in due_steps(num_steps(pipeline), self._num_previews):
                return None
            return self.decode(pipeline, predicted(pipeline.scheduler, before, latents))
        except Exception:  # the picture does not depend on its previews
            logger.warning("no previews of %s", type(pipeline).__name__, exc_info=True)
            self._num_previews = 0
            return None

    def decode(self, pipeline: Pipeline, latents: torch.Tensor) -> Any:
        """Returns what the request's call would return for these latents."""

        def replace(shadow: object, step: int, time: object, tensors: object) -> dict[str, object]:
            shadow.__dict__["_interrupt"] = True
            return {"latents": latents}

        shadow = copy.copy(pipeline)
        free = {name: FreeDenoiser(getattr(pipeline, name)) for name in self._denoisers}
        shadow.__dict__ |= {
            **free,
            "heard": Player(self._results),
            "scheduler": copy.deepcopy(pipeline.scheduler),
            "maybe_free_model_hooks": lambda: None,
        }
        seed = {"generator": torch.Generator()} if "generator" in self._arguments else {}
        return shadow(**{**self._arguments, **seed, ON_STEP: replace})


def num_steps(pipeline: object) -> int:
    """How many steps a running call takes; 0 for the few pipelines that do not say it."""
    return getattr(pipeline, "num_timesteps", 0)


def due_steps(steps: int, num_previews: int) -> set[int]:
    """After which steps (from 1) there is a preview: evenly spread, none after the last."""
    spread = (round(steps * (i + 1) / (num_previews + 1)) for i in range(num_previews))
    return {step for step in spread if 0 < step < steps}


def predicted(
    scheduler: object, before: torch.Tensor | None, latents: torch.Tensor
) -> torch.Tensor:
    """The latents at the end of the line through the last two, where there is such a line."""
    if before is None or not isinstance(scheduler, STRAIGHT):
        return latents
    last, now = scheduler.sigmas[scheduler.step_index - 1 : scheduler.step_index + 1].tolist()
    slope = (latents.float() - before.float()) / (now - last)
    end: torch.Tensor = latents.float() - now * slope
    return end.to(latents.dtype)


class Recorder:
    """Keeps what the outermost of the calls that it sees return."""

    def __init__(self, results: dict[str, list[object]]) -> None:
        self._results = results
        self._depth = 0

    def call(self, name: str, method: Callable[[], object]) -> object:
        """Make the call."""
        self._depth += 1
        try:
            result = method()
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._results[name].append(result)
        return result


class Player:
    """Returns the same, in the same order."""

    def __init__(self, results: Mapping[str, list[object]]) -> None:
        self._left = {name: deque(made) for name, made in results.items()}

    def call(self, name: str, method: Callable[[], object]) -> object:
        """Instead of the call."""
        return self._left[name].popleft()


class FreeDenoiser:
    """Stands for a denoiser and costs nothing: its result is zeros."""

    def __init__(self, denoiser: object) -> None:
        self._denoiser = denoiser

    def __getattr__(self, name: str) -> object:
        return getattr(self._denoiser, name)

    def __call__(self, *args: object, return_dict: bool = True, **kwargs: object) -> object:
        """Zeros of the form of the sample."""
        sample = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        zeros = _zeros(sample)
        return Transformer2DModelOutput(sample=zeros) if return_dict else (zeros,)


def _zeros(sample: Any) -> Any:
    return [_zeros(one) for one in sample] if isinstance(sample, list) else sample * 0


@functools.cache
def _listening(pipeline_class: type, before_steps: re.Pattern[str]) -> type:
    """The class with all that comes before the steps told to `heard`."""
    methods = {
        name: _told(name, method)
        for name, method in inspect.getmembers_static(pipeline_class, inspect.isfunction)
        if before_steps.fullmatch(name)
    }
    return type(pipeline_class.__name__, (pipeline_class,), methods)


def _told(name: str, method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def call(self: Any, *args: object, **kwargs: object) -> Any:
        return self.heard.call(name, lambda: method(self, *args, **kwargs))

    return call
