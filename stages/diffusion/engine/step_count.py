"""Counts the denoising steps of requests whose pipelines report none.

A step ends with its scheduler's `step`, however often it calls a denoiser, and whichever: so
schedulers of a request count. A pipeline whose schedulers do nothing is counted by its denoiser's
calls, without a total.
"""

import functools
from collections.abc import Callable
from typing import Any, Self

import torch

# Guidance of several kinds makes so many calls of a denoiser in one step; a pipeline that makes
# more before its scheduler's first step has none.
MAX_CALLS_A_STEP = 8
Report = Callable[[int, int], None]  # steps that were taken, and of how many; 0: unknown


class StepCount:
    """One request's steps, over all loops of its pipeline."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._num_calls = 0
        self._counts_calls = False
        self._loop: object = None  # the scheduler of the present loop
        self._before = 0  # steps of earlier loops
        self._taken = 0  # of the present one
        self._wanted = 0

    def __deepcopy__(self, memo: object) -> Self:
        """A scheduler that a pipeline copies for itself steps beside the first one: uncounted."""
        return type(self)(lambda taken, wanted: None)

    def watch(self, scheduler: Any) -> None:
        """Count the steps of a scheduler, which is the request's own."""
        made: type = type(scheduler)
        if callable(getattr(made, "step", None)):
            scheduler.__class__ = _counting(made)
            scheduler.step_count = self

    def stepped(self, scheduler: object, timestep: object) -> None:
        """A scheduler has taken a step."""
        if self._counts_calls:
            return
        if scheduler is not self._loop or self._taken >= self._wanted:
            self._loop, self._before = scheduler, self._before + self._taken
            self._taken, self._wanted = 0, _num_left(scheduler, timestep)
        self._taken += 1
        self._report(self._before + self._taken, self._before + max(self._taken, self._wanted))

    def called(self) -> None:
        """A call of a denoiser has returned."""
        self._num_calls += 1
        if self._loop is None and self._num_calls > MAX_CALLS_A_STEP:
            self._counts_calls = True
        if self._counts_calls:
            self._report(self._num_calls, 0)


def _num_left(scheduler: object, timestep: object) -> int:
    """Returns the steps from a timestep to the schedule's end: an edit begins in its middle."""
    timesteps = getattr(scheduler, "timesteps", None)
    if not isinstance(timesteps, torch.Tensor):
        return 0
    known = timesteps.flatten().tolist()
    first = torch.as_tensor(timestep).flatten()[0].item()
    return len(known) - (known.index(first) if first in known else 0)


@functools.cache
def _counting(scheduler_class: type) -> type:
    """The class, with the same names, whose `step` is counted."""
    original: Callable[..., object] = getattr(scheduler_class, "step")  # noqa: B009

    @functools.wraps(original)  # pipelines read its signature
    def step(self: Any, *args: object, **kwargs: object) -> object:
        result = original(self, *args, **kwargs)
        self.step_count.stepped(self, kwargs.get("timestep", args[1] if len(args) > 1 else 0))
        return result

    names = {"__module__": scheduler_class.__module__, "step": step}
    return type(scheduler_class.__name__, (scheduler_class,), names)
