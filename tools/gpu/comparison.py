"""Compares an engine's images with those of the bare pipeline, in pixels and in time."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from omnistage.stages.diffusion.assembly import WARM_UP_STEPS
from omnistage.stages.diffusion.control.control import Control, ControlOptions
from omnistage.stages.diffusion.engine.step_batcher import MAX_BATCH, StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadedPipeline

MATRIX = 8192


MAX_ERROR = 500  # letters


CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)


PLAIN = ControlOptions()


STARTED = time.perf_counter()


WORDS = "a fox in the snow, watercolour, " * 6


class Comparison:
    """One pipeline, asked through the engine and by itself."""

    def __init__(
        self, loaded: LoadedPipeline, num_steps: int, options: ControlOptions = PLAIN
    ) -> None:
        """`options`: of which the step cache is used."""
        self._pipeline = loaded.pipeline
        self._denoiser = next(iter(loaded.parts.dit.values()))
        self._num_steps = num_steps
        once = {**self.arguments(256), "num_inference_steps": WARM_UP_STEPS}
        twice = {**once, "num_images_per_prompt": 2}
        has_lane = loaded.turns is None
        dit = loaded.parts.dit
        self._control = Control(loaded, options, lambda folder: self._pipeline, "dit")
        self._engine = StepBatcher(self._pipeline, once, twice, MAX_BATCH, has_lane, dit)
        self._control.attach(self._engine)

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

    def warm_up(self, *asked: Mapping[str, Any]) -> None:
        """The same with few steps."""
        self.ours_s(*({**one, "num_inference_steps": WARM_UP_STEPS} for one in asked))

    def ours_s(self, *asked: Mapping[str, Any]) -> float:
        """Seconds for these requests at once."""
        with timed() as time_s:
            for job in [self._control.submit({}, **arguments) for arguments in asked]:
                job.result.result()
        return time_s[0]

    def picture(self, arguments: Mapping[str, Any]) -> torch.Tensor:
        """One of a request, [channels, height, width] float32 from 0 to 1."""
        images: torch.Tensor = self._control.submit({}, **arguments).result.result().images
        return images[0].float().cpu()

    def pictures(self, side: int, count: int) -> list[torch.Tensor]:
        """So many different ones at once, as `picture` has them."""
        jobs = [
            self._control.submit({}, **self.arguments(side, seed), output_type="pt")
            for seed in range(count)
        ]
        return [job.result.result().images[0].float().cpu() for job in jobs]

    def bare_s(self, arguments: Mapping[str, Any]) -> float:
        """Seconds of a bare call; outside a request the engine's hooks only pass it on."""
        with torch.inference_mode(), timed() as time_s:
            self._pipeline(**arguments)
        return time_s[0]

    def ours_at_once_s(self, side: int, count: int) -> tuple[float, dict[int, int]]:
        """Seconds for so many requests at once, and their forwards, by how many shared them."""
        self.warm_up(*(self.arguments(side, seed) for seed in range(count)))
        before = Counter(self.batch_sizes)
        ours_s = self.ours_s(*(self.arguments(side, seed) for seed in range(count)))
        return ours_s, dict(sorted((self.batch_sizes - before).items()))

    def bare_at_once_s(self, side: int, count: int) -> float:
        """Seconds of one bare call for as many pictures."""
        one_call = {**self.arguments(side), "num_images_per_prompt": count}
        self.bare_s({**one_call, "num_inference_steps": WARM_UP_STEPS})
        return self.bare_s(one_call)

    def num_flops(self, side: int) -> int:
        """Returns the operations of all the denoiser's forwards of one image; each step has as
        many.
        """
        total, counter = 0, FlopCounterMode(display=False)

        def begin(*_: Any) -> None:
            counter.__enter__()

        def end(*_: Any) -> None:
            nonlocal total
            counter.__exit__(None, None, None)
            total += counter.get_total_flops()

        hooks = [
            self._denoiser.register_forward_pre_hook(begin),
            self._denoiser.register_forward_hook(end),
        ]
        with torch.inference_mode():
            self._pipeline(**{**self.arguments(side), "num_inference_steps": WARM_UP_STEPS})
        for hook in hooks:
            hook.remove()
        return total * self._num_steps // WARM_UP_STEPS

    @property
    def batch_sizes(self) -> Counter[int]:
        """Forwards, by how many requests shared them."""
        return self._engine.batch_sizes

    def close(self) -> None:
        """End the engine."""
        self._control.close()
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
    """Returns the speed of a large matrix product."""
    size = MATRIX if device.type == "cuda" else MATRIX // 8
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        one @ other
    with timed() as time_s:
        for _ in range(10):
            one @ other
    return 10 * 2 * size**3 / time_s[0]


def rms(difference: torch.Tensor) -> float:
    """The root of its mean square."""
    return float((difference**2).mean().sqrt())


def say(line: str) -> None:
    """Print it, with the seconds since the start."""
    CONSOLE.print(f"{time.perf_counter() - STARTED:7.1f} s  {line}")


def say_failed(name: str, error: Exception) -> None:
    """Why something is not measured."""
    say(f"{name}: failed: {type(error).__name__}: {str(error)[:MAX_ERROR]}")


@contextmanager
def told(name: str) -> Iterator[None]:
    """Prints a failure inside, after which the rest is measured."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as want of memory for many pictures
        say_failed(name, error)


def fresh() -> dict[str, Any]:
    """The same noise again: a generator goes on from where it was."""
    return {"generator": torch.Generator().manual_seed(0)}
