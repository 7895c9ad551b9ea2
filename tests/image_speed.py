"""`make image-speed`: a pipeline below the step batcher against the same one bare, in turns.

The folder may have no weights (`omnistage tiny qwen-image DIR --real-size`): they are random then.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from omnistage.stages.diffusion.loading import Loaded, LoadOptions
from omnistage.stages.diffusion.step_batcher import StepBatcher

MATRIX = 8192
WORDS = "a fox in the snow, watercolour, " * 6


class Comparison:
    """One pipeline, asked through the engine and by itself."""

    def __init__(self, loaded: Loaded, num_steps: int) -> None:
        self._pipeline = loaded.pipeline
        self._denoiser = next(iter(loaded.parts.dit.values()))
        self._num_steps = num_steps
        once = {**self.arguments(256), "num_inference_steps": 1}
        twice = {**once, "num_images_per_prompt": 2}
        self._engine = StepBatcher(self._pipeline, once, twice, denoisers=loaded.parts.dit)

    def arguments(self, side: int, seed: int = 0) -> dict[str, Any]:
        """One picture with guidance."""
        return {
            "prompt": WORDS,
            "negative_prompt": "blurred",
            "true_cfg_scale": 4.0,
            "height": side,
            "width": side,
            "num_inference_steps": self._num_steps,
            "generator": torch.Generator().manual_seed(seed),
        }

    def ours_s(self, *asked: Mapping[str, Any]) -> float:
        """Seconds for these requests at once."""
        with timed() as time_s:
            for job in [self._engine.submit(**arguments) for arguments in asked]:
                job.result.result()
        return time_s[0]

    def bare_s(self, arguments: Mapping[str, Any]) -> float:
        """Seconds of a bare call; outside a request the engine's hooks only pass it on."""
        with torch.inference_mode(), timed() as time_s:
            self._pipeline(**arguments)
        return time_s[0]

    def num_flops(self, side: int) -> int:
        """Of all the denoiser's forwards of one picture."""
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            self._pipeline(**self.arguments(side))
        counts: Mapping[str, Mapping[Any, int]] = counter.get_flop_counts()
        return sum(counts[type(self._denoiser).__name__].values())

    @property
    def batch_sizes(self) -> Counter[int]:
        """Forwards, by how many requests shared them."""
        return self._engine.batch_sizes

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


@contextmanager
def timed() -> Iterator[list[float]]:
    """The seconds of what is inside, with the device's work."""
    time_s: list[float] = []
    synchronize()
    started = time.perf_counter()
    yield time_s
    synchronize()
    time_s.append(time.perf_counter() - started)


def synchronize() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Of a large matrix product."""
    size = MATRIX if device.type == "cuda" else MATRIX // 8
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        one @ other
    with timed() as time_s:
        for _ in range(10):
            one @ other
    return 10 * 2 * size**3 / time_s[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    asked = parser.parse_args()
    loaded = LoadOptions(load_format=asked.load_format).load(asked.folder)
    compared = Comparison(loaded, asked.steps)
    rate = flops_per_s(loaded.device, loaded.dtype)
    table = Table("side", "ours, s", "bare, s", "ours over bare (spread)", "floor, s", "at once, s")
    for side in (asked.side, asked.side // 2):
        floor_s = compared.num_flops(side) / rate
        compared.ours_s(compared.arguments(side))
        pairs = [
            (
                compared.ours_s(compared.arguments(side, seed)),
                compared.bare_s(compared.arguments(side, seed)),
            )
            for seed in range(asked.pairs)
        ]
        ratios = sorted(ours / bare for ours, bare in pairs)
        together = [compared.arguments(side, seed) for seed in range(asked.at_once)]
        compared.ours_s(*together)
        table.add_row(
            str(side),
            f"{median(ours for ours, _ in pairs):.3f}",
            f"{median(bare for _, bare in pairs):.3f}",
            f"{median(ratios):.4f} ({ratios[0]:.4f} - {ratios[-1]:.4f})",
            f"{floor_s:.3f}",
            f"{asked.at_once}: {compared.ours_s(*together):.3f}",
        )
    Console(width=110).print(table, f"requests that shared a forward: {dict(compared.batch_sizes)}")
    compared.close()


if __name__ == "__main__":
    main()
