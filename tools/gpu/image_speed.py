"""`make image-speed`: a pipeline below the step batcher against the same one bare, in turns.

The folder may have no weights (`omnistage tiny qwen-image DIR --real-size`): they are random then.
With `--offload`: what a picture takes of the device, in memory and time, by kind of offload.
With `--ladder attention=native_cudnn,compile,step_cache=first_block:threshold=0.1` and so on:
one pipeline, to which these changes are made one after another. After each of them: a picture's
seconds, how far it is from the unchanged one, and several at once beside the bare pipeline's one
call of as many; two of those at once are compared with the same alone, whose distance from each
other is beside it. `--quantization fp8` and `--compile` are such changes. Random weights tell speed
only: `--load-format auto` reads those of the folder.
"""

import argparse
import copy
import gc
import math
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from omnistage.stages.device.devices import device_of
from omnistage.stages.device.memory import GIB
from omnistage.stages.diffusion.assembly import WARM_UP_STEPS
from omnistage.stages.diffusion.blocks.compiled import is_compiled, undo
from omnistage.stages.diffusion.control.control import Control, ControlOptions
from omnistage.stages.diffusion.control.step_cache import CONFIGS
from omnistage.stages.diffusion.engine.step_batcher import MAX_BATCH, StepBatcher
from omnistage.stages.diffusion.loading.attention import check_attention, set_attention
from omnistage.stages.diffusion.loading.float8 import QUANTIZATIONS, quantize
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions, compile_blocks
from omnistage.stages.diffusion.loading.movable import Movable
from omnistage.stages.diffusion.loading.offload import OFFLOADS
from omnistage.stages.diffusion.loading.other_weights import modules_of

MATRIX = 8192
MAX_ERROR = 500  # letters
KINDS = ("attention", "compile", "quantization", "step_cache")
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


def compare(asked: argparse.Namespace) -> None:
    """The engine and the bare pipeline in turns; at the smaller side several pictures at once."""
    loaded = LoadOptions(load_format=asked.load_format).load(asked.folder)
    compared = Comparison(loaded, asked.steps)
    rate = flops_per_s(loaded.device, loaded.dtype)
    sides = (asked.side, asked.side // 2)
    for side in sides:
        floor_s = compared.num_flops(side) / rate
        compared.warm_up(compared.arguments(side))
        pairs = [
            (
                compared.ours_s(compared.arguments(side, seed)),
                compared.bare_s(compared.arguments(side, seed)),
            )
            for seed in range(asked.pairs)
        ]
        ratios = sorted(ours / bare for ours, bare in pairs)
        CONSOLE.print(
            f"side {side}: ours {median(ours for ours, _ in pairs):.3f} s, "
            f"bare {median(bare for _, bare in pairs):.3f} s, "
            f"ours over bare {median(ratios):.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f}), "
            f"floor {floor_s:.3f} s"
        )
    compare_at_once(compared, min(sides), asked.at_once)
    compared.close()


def compare_at_once(compared: Comparison, side: int, count: int) -> None:
    """So many requests, and the bare pipeline's one call for as many pictures."""
    ours_s, sizes = compared.ours_at_once_s(side, count)
    bare_s = compared.bare_at_once_s(side, count)
    CONSOLE.print(
        f"{count} at once, side {side}: ours {ours_s:.3f} s, forwards by requests {sizes}; "
        f"one call of the bare pipeline {bare_s:.3f} s"
    )


def compare_offloads(asked: argparse.Namespace) -> None:
    """One picture with each kind of offload and with none; the weights are read once."""
    started = time.perf_counter()
    device = device_of(None)
    read = LoadOptions(load_format=asked.load_format, offload=OFFLOADS[0]).read
    pipeline = read(asked.folder, device)
    CONSOLE.print(f"read in {time.perf_counter() - started:.1f} s")
    for kind in (*OFFLOADS, None):  # without offload the weights leave the host: that one is last
        options = LoadOptions(offload=kind)
        CONSOLE.print(f"offload {kind}:", measured(options.place(sharing(pipeline)), asked))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    seconds = time.perf_counter() - started
    CONSOLE.print(f"host: {peak:.1f} GiB at most; {seconds:.1f} s in all")


def sharing(pipeline: Any) -> Any:
    """A copy with the same weights, to be placed by itself."""
    weights = Movable(list(modules_of(pipeline).values())).tensors
    return copy.deepcopy(pipeline, {id(weight): weight for weight in weights})


@dataclass(frozen=True, slots=True)
class Rung:
    """One change of a pipeline, written as `kind=value:option=number`."""

    kind: str
    value: str = ""
    options: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "Rung":
        """Raises ValueError for what is no change."""
        first, *more = text.split(":")
        kind, _, value = first.partition("=")
        options = {name: float(number) for name, _, number in (one.partition("=") for one in more)}
        if kind == "attention":
            check_attention(value)
        elif kind == "quantization" and value not in QUANTIZATIONS:
            raise ValueError(f"{text}: is none of {', '.join(QUANTIZATIONS)}")
        elif kind == "step_cache" and value not in CONFIGS:
            raise ValueError(f"{text}: is none of {', '.join(CONFIGS)}")
        elif kind not in KINDS or (value and kind == "compile"):
            raise ValueError(f"{text}: is none of {', '.join(KINDS)}")
        if options and kind != "step_cache":
            raise ValueError(f"{text}: only step_cache has options")
        return cls(kind, value, options)

    def __str__(self) -> str:
        more = "".join(f":{name}={number:g}" for name, number in self.options.items())
        return (f"{self.kind}={self.value}" if self.value else self.kind) + more


class Changed:
    """A loaded pipeline and the changes that were made to it."""

    def __init__(self, loaded: LoadedPipeline) -> None:
        self.loaded = loaded
        self.options = PLAIN
        self._is_compiled = False
        self._may_choose = True  # an attention, which nobody asked for

    def put(self, rung: Rung) -> None:
        """Make one more change; what was compiled before it is compiled again."""
        parts = self.loaded.parts
        if rung.kind == "attention":
            set_attention(parts, rung.value, self.loaded.device)
            self._may_choose = False
        elif rung.kind == "quantization":
            quantize(parts, self.loaded.device)
        elif rung.kind == "step_cache":
            self.options = ControlOptions(
                step_cache=rung.value, step_cache_options=dict(rung.options)
            )
        self._is_compiled |= rung.kind == "compile"
        if self._is_compiled:
            torch.compiler.reset()
            compile_blocks(parts, self.loaded.device, self._may_choose)

    def take_back(self, rung: Rung) -> bool:
        """After a change that failed; False: the pipeline cannot be as it was."""
        if rung.kind == "attention":
            set_attention(self.loaded.parts, "native", self.loaded.device)
        elif rung.kind == "compile":
            self._is_compiled = False
            for denoiser in self.loaded.parts.dit.values():
                for module in filter(is_compiled, denoiser.modules()):
                    undo(module)
        return rung.kind in ("attention", "compile")


class Ladder:
    """The engine over a pipeline as it is, and then with each change beside those before it."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._sides = sorted({asked.side // 2, asked.side}) if asked.at_once > 1 else []
        self._bare_s = 0.0
        self._bare_at_once_s: dict[int, float] = {}
        self._exact: torch.Tensor | None = None

    def climb(self, rungs: Sequence[Rung]) -> None:
        """Print every figure as soon as it is known; a change that fails is left out."""
        asked = self._asked
        loaded = LoadOptions(load_format=asked.load_format).load(asked.folder)
        say(f"loaded on {loaded.device} in {loaded.dtype}")
        changed = Changed(loaded)
        self._measure_bare(loaded)
        self._measure("unchanged", changed)
        for rung in rungs:
            try:
                changed.put(rung)
                self._measure(f"+ {rung}", changed)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next may do
                say_failed(f"+ {rung}", error)
                if not changed.take_back(rung):
                    say("the changes after it are left out")
                    return

    def _measure_bare(self, loaded: LoadedPipeline) -> None:
        """Measures the base of all comparisons once, below an engine that does nothing."""
        asked = self._asked
        compared = Comparison(loaded, asked.steps)
        rate = flops_per_s(loaded.device, loaded.dtype)
        floor_s = compared.num_flops(asked.side) / rate
        say(f"side {asked.side}: floor {floor_s:.3f} s at {rate / 1e12:.0f} TFLOP/s")
        arguments = compared.arguments(asked.side)
        self._bare_s = median(compared.bare_s({**arguments, **fresh()}) for _ in range(asked.pairs))
        say(f"bare: {self._bare_s:.3f} s a picture of side {asked.side}")
        for side in self._sides:
            with told(f"bare: {asked.at_once} of {side} in a call"):
                self._bare_at_once_s[side] = bare_s = compared.bare_at_once_s(side, asked.at_once)
                say(f"bare: {bare_s:.3f} s for {asked.at_once} of side {side} in a call")
        compared.close()

    def _measure(self, name: str, changed: Changed) -> None:
        gc.collect()
        if changed.loaded.device.type == "cuda":
            torch.cuda.empty_cache()
        asked = self._asked
        compared = Comparison(changed.loaded, asked.steps, changed.options)
        try:
            arguments = {**compared.arguments(asked.side), "output_type": "pt"}
            compared.warm_up(arguments)
            picture = compared.picture({**arguments, **fresh()})
            ours_s = median(compared.ours_s({**arguments, **fresh()}) for _ in range(asked.pairs))
            say(
                f"{name}: {ours_s:.3f} s a picture of side {asked.side}, "
                f"{self._bare_s / ours_s:.3f} times bare; {self._away(picture)}"
            )
            for side in self._sides:
                with told(f"{name}: {asked.at_once} of side {side} at once"):
                    self._measure_at_once(name, compared, side)
        finally:
            compared.close()

    def _measure_at_once(self, name: str, compared: Comparison, side: int) -> None:
        count = self._asked.at_once
        ours_s, sizes = compared.ours_at_once_s(side, count)
        say(
            f"{name}: {ours_s:.3f} s for {count} of side {side} at once, "
            f"{self._bare_at_once_s.get(side, math.nan) / ours_s:.3f} times bare; "
            f"forwards by requests {sizes}; {pictures_away(compared, side, count)}"
        )

    def _away(self, picture: torch.Tensor) -> str:
        """How far a picture is from the unchanged one, which is the first."""
        if self._exact is None:
            self._exact = picture
        if not self._exact.isfinite().all():
            return "the unchanged picture has numbers that are not finite: no error can be told"
        if not picture.isfinite().all():
            return "its picture has numbers that are not finite"
        if picture is self._exact:
            return (
                f"its picture is finite, its standard deviation {float(picture.std()):.5f} (of 1)"
            )
        away = (picture - self._exact).abs()
        square = float((away**2).mean())
        share = math.sqrt(square) / max(float(self._exact.std()), 1e-12)
        return (
            f"off by {float(away.mean()):.2g} on average and {float(away.max()):.2g} at most "
            f"(of 1), PSNR {10 * math.log10(1 / max(square, 1e-12)):.1f} dB, "
            f"{share:.2g} of the unchanged one's standard deviation"
        )


def pictures_away(compared: Comparison, side: int, count: int) -> str:
    """How far the first and the last of several at once are from themselves alone.

    In standard deviations of a picture; beside it how far the two alone are from each other.
    """
    together = compared.pictures(side, count)
    ends = (0, count - 1)
    alone = [
        compared.picture({**compared.arguments(side, seed), "output_type": "pt"}) for seed in ends
    ]
    deviation = max(float(alone[0].std()), 1e-12)
    own = max(rms(together[seed] - one) / deviation for seed, one in zip(ends, alone, strict=True))
    return (
        f"at once off from alone by at most {own:.2g} of a picture's standard deviation, "
        f"two alone from each other by {rms(alone[0] - alone[1]) / deviation:.2g}"
    )


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


def measured(loaded: LoadedPipeline, asked: argparse.Namespace) -> str:
    """A picture's seconds, what was on the device at most, and what stays there after it."""
    compared = Comparison(loaded, asked.steps)
    arguments = compared.arguments(asked.side)
    compared.warm_up(arguments)
    gc.collect()
    has_cuda = loaded.device.type == "cuda"
    if has_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    time_s = compared.ours_s(arguments)
    said = f"{time_s:.3f} s a picture of side {asked.side}"
    if has_cuda:
        used, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        said += f", peak {used / GIB:.1f} GiB ({reserved / GIB:.1f} reserved)"
        said += f", at rest {torch.cuda.memory_allocated() / GIB:.1f} GiB"
    compared.close()
    return said


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--ladder", default="")
    parser.add_argument("--quantization", choices=QUANTIZATIONS)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    texts = asked.ladder.split(",") if asked.ladder else []
    texts += [f"quantization={asked.quantization}"] if asked.quantization else []
    texts += ["compile"] if asked.compile else []
    try:
        rungs = [Rung.of(text) for text in texts]
    except ValueError as error:
        parser.error(f"--ladder: {error}")
    if asked.offload and rungs:
        parser.error("--offload: not with --ladder, --quantization or --compile")
    if any(rung.kind == "step_cache" for rung in rungs[:-1]):
        parser.error("--ladder: step_cache must be the last")
    if asked.offload:
        compare_offloads(asked)
    elif rungs:
        Ladder(asked).climb(rungs)
    else:
        compare(asked)


if __name__ == "__main__":
    main()
