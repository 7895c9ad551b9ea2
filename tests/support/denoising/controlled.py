"""One tiny pipeline below an engine with its control, and a bare twin to compare with."""

import asyncio
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import DiffusionPipeline
from support.tiny_pipelines import Settings, doubled, made, quiet

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.control.control import Control, ControlOptions
from omnistage.stages.diffusion.engine.job import Job
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.components import Parts
from omnistage.stages.diffusion.loading.float8 import quantize
from omnistage.stages.diffusion.loading.loading import LoadedPipeline

CPU = torch.device("cpu")


class Controlled:
    """Asks with the fields of a request's body, and compares; `options` are engine arguments."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.bare, self.pipeline = quiet(make_tiny(name)), quiet(make_tiny(name))
        parsed = ControlOptions.of(options)
        parts, is_quantized = Parts.find(self.pipeline), "quantization" in options
        if is_quantized:
            quantize(parts, CPU)
        loaded = LoadedPipeline(self.pipeline, parts, None, CPU, is_quantized)
        self.control = Control(loaded, parsed, self._read, "dit")
        once = Settings(0, 2, 3.0).arguments(name)
        self.engine = StepBatcher(self.pipeline, once, doubled(once))
        self.control.attach(self.engine)

    def _read(self, folder: str | None) -> Any:
        return make_tiny(self.name) if folder is None else DiffusionPipeline.from_pretrained(folder)

    def obey(self, command: str, **arguments: Any) -> Mapping[str, Any]:
        """A command, as the stage gets it."""
        return asyncio.run(self.control.obey(command, arguments))

    def ask(self, body: Mapping[str, Any], seed: int, num_steps: int = 4) -> Job:
        """A request."""
        return self.control.submit(body, **Settings(seed, num_steps, 3.0).arguments(self.name))

    def expected(self, seed: int, num_steps: int = 4) -> torch.Tensor:
        """The bare twin's picture."""
        return self.picture_of(self.bare, seed, num_steps)

    def picture_of(self, pipeline: Any, seed: int, num_steps: int = 4) -> torch.Tensor:
        """Another pipeline's."""
        with torch.inference_mode():
            return made(pipeline(**Settings(seed, num_steps, 3.0).arguments(self.name)))

    def close(self) -> None:
        """End the engine."""
        self.control.close()
        self.engine.close()
