"""Adds one switch of the engine after another, and measures each."""

import argparse
import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from comparison import PLAIN, Comparison, flops_per_s, fresh, rms, say, say_failed, told

from omnistage.stages.diffusion.blocks.compiled import is_compiled, undo
from omnistage.stages.diffusion.control.control import ControlOptions
from omnistage.stages.diffusion.control.step_cache import CONFIGS
from omnistage.stages.diffusion.loading.attention import check_attention, set_attention
from omnistage.stages.diffusion.loading.components import compile_blocks
from omnistage.stages.diffusion.loading.float8 import QUANTIZATIONS, quantize
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions

KINDS = ("attention", "compile", "quantization", "step_cache")


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
