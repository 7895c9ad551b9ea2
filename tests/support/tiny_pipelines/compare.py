"""Compares calls of a pipeline below an engine with those of a bare twin."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.tiny_pipelines.build import Unbuilt, build
from support.tiny_pipelines.calls import arguments

from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.request.tasks import arguments_of
from omnistage.stages.diffusion.request.videos import counted

PIXEL = 1.001 / 255  # a step of a byte
NUM_TOGETHER = 3
TIMEOUT_S = 120
ARGUMENTS_DIFFER = "their arguments differ"


@dataclass(frozen=True)
class Comparison:
    """Distances of a class's calls from the bare ones, and how its forwards were shared.

    `alone`, `together`: the largest difference of two values, pixels of 0..1 or samples.
    `batches`: forwards of the calls together, by how many of them shared one.
    """

    alone: float
    together: float
    batches: Mapping[int, int]
    alone_because: str

    @property
    def is_equal(self) -> bool:
        """Returns whether all calls equal the bare ones but for a step of a byte."""
        return max(self.alone, self.together) <= PIXEL

    def __str__(self) -> str:
        """Return the cell of the table of pipelines."""
        equal = "equal" if self.is_equal else "NOT equal"
        shared = f"shares {self.shared} of its forwards"
        reason = self.alone_because or ARGUMENTS_DIFFER
        return f"ran: {equal}, {shared}" + (f" ({reason})" if self.shared == "none" else "")

    @property
    def shared(self) -> str:
        """Returns `all`, `some` or `none`: forwards that all of the calls shared."""
        if set(self.batches) == {NUM_TOGETHER}:
            return "all"
        return "some" if max(self.batches) > 1 else "none"


def compare(made: Any, twins: tuple[Any, Any] | None = None) -> Comparison:
    """Make the calls of a class alone and together, and those of its twin.

    `twins`: the bare pipeline and the one below the engine, where they are not built here.
    """
    bare, pipeline = twins or (build(made), build(made))
    seeds = range(NUM_TOGETHER)
    with torch.inference_mode():
        wanted = [bare(**arguments(bare, seed)) for seed in seeds]
        again = bare(**arguments(bare, 0))
    if not distance(wanted[:1], wanted[1:2]) > PIXEL:  # NaN, too
        raise Unbuilt(f"{made.__name__}: random weights make no picture of its own of a seed")
    if distance([again], wanted[:1]) > PIXEL:
        raise Unbuilt(f"{made.__name__} draws from torch's own generator")
    once, double = short_calls(pipeline)
    with closing(StepBatcher(pipeline, once, double)) as engine:
        alone = [result for seed in seeds for result in _results(engine, pipeline, [seed])]
        together = _results(engine, pipeline, seeds)
    # Without lanes all come to their first step at the same time.
    with closing(StepBatcher(pipeline, once, double, has_side_lanes=False)) as engine:
        in_step = _results(engine, pipeline, seeds)
        batches = dict(engine.batch_sizes)
        reason = engine.learned.alone_because
    gap = max(distance(together, wanted), distance(in_step, wanted))
    return Comparison(distance(alone, wanted), gap, batches, reason)


def short_calls(pipeline: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of two short calls, the second for twice as many images."""
    known = arguments_of(pipeline)
    short = arguments(pipeline, 0, num_inference_steps=2)
    prompt = {"prompt": short["prompt"]}
    once, double = ({**short, **counted(num, prompt, known)} for num in (1, 2))
    return once, double


def _results(engine: StepBatcher, pipeline: Any, seeds: Sequence[int]) -> list[Any]:
    """Return the results of calls that begin at the same time."""
    is_held, all_are_there = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        all_are_there.wait()

    engine.between_steps(hold)
    is_held.wait()
    jobs = [engine.submit(**arguments(pipeline, seed)) for seed in seeds]
    all_are_there.set()
    return [job.result.result(TIMEOUT_S) for job in jobs]


def distance(results: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the largest difference of results from those that they must equal."""
    pairs = zip(arrays(results), arrays(wanted), strict=True)
    return max(_gap(one, other) for one, other in pairs)


def _gap(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    assert one.shape == other.shape, (one.shape, other.shape)
    return float(np.abs(one.astype(np.float64) - other).max())


def arrays(result: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield all pixels and samples of a result, one image or tensor after another."""
    if isinstance(result, torch.Tensor):
        yield result.float().numpy()
    elif isinstance(result, Mapping):
        yield from arrays(list(result.values()))
    elif isinstance(result, list | tuple):
        for one in result:
            yield from arrays(one)
    elif result is not None and not isinstance(result, bool | int | float | str):
        array = np.asarray(result)
        yield array / 255 if array.dtype == np.uint8 else array
