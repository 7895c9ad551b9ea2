"""Compares images per second of shared steps with those of calls one after another.

PYTHONPATH=tests:scripts python tools/black_box.py [CLASS ...] [--requests 4] [--steps 20]

Tiny pipelines with random weights, on a CPU. "One by one" is how a server works that calls a
pipeline as a black box: the next request begins when the one before it is done. "Together" are the
same requests at once, through the engine of the diffusion stage. Each line has the best round.
"""

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import diffusers
import torch
from support.tiny_pipelines.build import build
from support.tiny_pipelines.calls import arguments
from support.tiny_pipelines.compare import short_calls

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
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    for name in options.classes:
        alone, together = measure(name, options)
        rates = f"{alone:.2f}/s one by one, {together:.2f}/s together"
        sys.stdout.write(f"{name}: {rates}: {together / alone:.2f} times\n")


def measure(name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return the results per second one by one and together."""
    bare, pipeline = build(getattr(diffusers, name)), build(getattr(diffusers, name))

    def requests() -> list[dict[str, Any]]:
        seeds = range(options.requests)
        return [arguments(bare, seed, num_inference_steps=options.steps) for seed in seeds]

    @torch.inference_mode()
    def one_by_one(calls: Sequence[dict[str, Any]]) -> None:
        for call in calls:
            bare(**call)

    with closing(StepBatcher(pipeline, *short_calls(pipeline))) as engine:

        def together(calls: Sequence[dict[str, Any]]) -> None:
            for job in [engine.submit(**call) for call in calls]:
                job.result.result()

        ways = (one_by_one, together)
        times: list[list[float]] = [[], []]
        for _ in range(options.rounds + 1):  # the first is a warm-up; the ways take turns
            for way, took in zip(ways, times, strict=True):
                took.append(_seconds(way, requests()))
    first, second = (options.requests / min(took[1:]) for took in times)
    return first, second


def _seconds(way: Callable[[Sequence[dict[str, Any]]], None], calls: Any) -> float:
    started = time.perf_counter()
    way(calls)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
