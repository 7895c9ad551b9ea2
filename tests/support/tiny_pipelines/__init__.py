"""Requests for the tiny pipelines, and their bare twins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher

PROMPTS = ("a cat", "a red house by the sea", "rain", "two birds", "an old map of the world")
GUIDANCE = {
    "flux": "guidance_scale",
    "qwen-image": "true_cfg_scale",
    "sd3": "guidance_scale",
    "wan": "guidance_scale",
}
TIMEOUT_S = 600


@dataclass(frozen=True)
class Settings:
    """One request."""

    seed: int
    num_steps: int = 2
    guidance: float = 1.0
    height: int = 32
    width: int = 32

    def arguments(self, name: str) -> dict[str, Any]:
        """Of the tiny pipeline of this name; each time with a new generator."""
        made: dict[str, Any] = {
            "prompt": PROMPTS[self.seed % len(PROMPTS)],
            "height": self.height,
            "width": self.width,
            "num_inference_steps": self.num_steps,
            "generator": torch.Generator().manual_seed(self.seed),
            "output_type": "pt",
            GUIDANCE[name]: self.guidance,
        }
        if self.guidance > 1 and name != "flux":
            made["negative_prompt"] = PROMPTS[(self.seed + 1) % len(PROMPTS)]
        if name == "wan":
            made["num_frames"] = 5
        return made


class Served:
    """A pipeline below an engine, and a bare twin to compare with."""

    def __init__(
        self, name: str, prepare: Callable[[Any], None] = lambda pipeline: None, **options: Any
    ) -> None:
        """`prepare` the pipeline before the engine takes it; `options`: the engine's."""
        self.name = name
        self.bare, self.pipeline = quiet(make_tiny(name)), quiet(make_tiny(name))
        prepare(self.pipeline)
        once = Settings(0, 2, 3.0).arguments(name)
        self.engine = StepBatcher(self.pipeline, once, doubled(once), **options)

    def expected(self, settings: Settings, **more: Any) -> torch.Tensor:
        """The bare pipeline's."""
        with torch.inference_mode():
            return made(self.bare(**{**settings.arguments(self.name), **more}))

    def ask(self, settings: Settings, **more: Any) -> Any:
        """A job of the engine."""
        return self.engine.submit(**{**settings.arguments(self.name), **more})


def doubled(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same for two prompts."""
    texts = {name: [arguments[name]] * 2 for name in arguments if name.endswith("prompt")}
    return {**arguments, **texts}


def quiet(pipeline: Any) -> Any:
    """Without its progress bar."""
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def made(output: Any) -> torch.Tensor:
    """Pictures or frames."""
    (tensor,) = output.values()
    assert isinstance(tensor, torch.Tensor)
    return tensor


def result(job: Any) -> torch.Tensor:
    """Of a job, when it is there."""
    return made(job.result.result(TIMEOUT_S))


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference."""
    assert actual.shape == expected.shape
    return float((actual - expected).abs().max())
