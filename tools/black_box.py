"""Compares images per second of shared steps with those of calls one after another.

PYTHONPATH=tests:scripts python tools/black_box.py [CLASS ...] [--requests 4] [--steps 20]

Tiny pipelines with random weights, on a CPU. "One by one" is how a server works that calls a
pipeline as a black box: the next request begins when the one before it is done. "Together" are the
same requests at once, through the engine of the diffusion stage. Each line has the best round.

With `--wan 704x1280x17` the pipeline is Wan 2.2 TI2V of 5 billion weights, random ones in bfloat16
on a GPU, with a tiny encoder of texts. How far the videos together are from the same alone is
printed, too, in standard deviations of a video, beside the distance of two videos.
"""

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import diffusers
import numpy as np
import numpy.typing as npt
import torch
from support.models.wan import make_wan
from support.tiny_pipelines.build import build
from support.tiny_pipelines.calls import arguments
from support.tiny_pipelines.compare import arrays, short_calls

from omnistage.stages.diffusion.engine.step_batcher import StepBatcher

CLASSES = ("QwenImagePipeline", "FluxPipeline", "StableDiffusionXLPipeline", "WanPipeline")


def main() -> None:
    """Print a line per class."""
    parser = argparse.ArgumentParser()
    parser.add_argument("classes", nargs="*", default=CLASSES)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wan", metavar="HEIGHTxWIDTHxFRAMES", help="several by commas")
    parser.add_argument("--tiny", action="store_true", help="with --wan: the tiny one on a CPU")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    if options.wan:
        pipeline = make_wan(is_tiny=options.tiny)
        for size in options.wan.split(","):
            measure_wan(pipeline, size, options)
        return
    for name in options.classes:
        made = getattr(diffusers, name)
        Measured(build(made), build(made), {}, options).show(name)


def measure_wan(pipeline: Any, size: str, options: argparse.Namespace) -> None:
    """Print the line of one size, and how far the videos are from those alone."""
    height, width, num_frames = (int(one) for one in size.split("x"))
    more = {"height": height, "width": width, "num_frames": num_frames}
    measured = Measured(pipeline, pipeline, more, options)
    measured.show(f"Wan, {size}, {options.steps} steps")
    alone, together = (
        [one for each in way for one in arrays(each.frames)] for way in measured.results
    )
    deviation = max(float(alone[0].std()), 1e-12)
    own = max(rms(one - other) for one, other in zip(alone, together, strict=True))
    others = rms(alone[0] - alone[1])
    sys.stdout.write(
        f"together off from alone by at most {own / deviation:.2g} of a video's standard "
        f"deviation ({deviation:.2g}), two alone from each other by {others / deviation:.2g}; "
        f"forwards by requests {measured.batches}\n"
    )


def rms(difference: npt.NDArray[Any]) -> float:
    """Return the root of its mean square."""
    return float(np.sqrt((difference.astype(np.float64) ** 2).mean()))


class Measured:
    """The results per second one by one and together, and the last results of both."""

    def __init__(
        self, bare: Any, pipeline: Any, more: dict[str, Any], options: argparse.Namespace
    ) -> None:
        """`bare` may be `pipeline`: outside a request the engine only passes a forward on."""
        self._bare, self._more, self._options = bare, more, options
        self.times: list[list[float]] = [[], []]
        self.results: list[list[Any]] = [[], []]
        calls = [{**call, **more} for call in short_calls(pipeline)]
        with closing(StepBatcher(pipeline, calls[0], calls[1])) as engine:
            self._engine = engine
            ways = (self._one_by_one, self._together)
            for _ in range(options.rounds + 1):  # the first is a warm-up; the ways take turns
                before = Counter(engine.batch_sizes)
                for place, way in enumerate(ways):
                    self._time(place, way)
                self.batches = dict(sorted((engine.batch_sizes - before).items()))

    def show(self, name: str) -> None:
        """Print the line of the best round."""
        alone, together = (self._options.requests / min(took[1:]) for took in self.times)
        rates = f"{alone:.3g}/s one by one, {together:.3g}/s together"
        sys.stdout.write(f"{name}: {rates}: {together / alone:.2f} times\n")

    def _time(self, place: int, way: Callable[[Sequence[dict[str, Any]]], list[Any]]) -> None:
        more = {**self._more, "num_inference_steps": self._options.steps}
        calls = [arguments(self._bare, seed, **more) for seed in range(self._options.requests)]
        started = time.perf_counter()
        self.results[place] = way(calls)  # numbers on the host: the device has ended
        self.times[place].append(time.perf_counter() - started)

    @torch.inference_mode()
    def _one_by_one(self, calls: Sequence[dict[str, Any]]) -> list[Any]:
        return [self._bare(**call) for call in calls]

    def _together(self, calls: Sequence[dict[str, Any]]) -> list[Any]:
        jobs = [self._engine.submit(**call) for call in calls]
        return [job.result.result() for job in jobs]


if __name__ == "__main__":
    main()
