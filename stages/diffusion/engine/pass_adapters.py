"""An adapter of one pass of a pipeline that makes several over the same modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from greenlet import getcurrent

from omnistage.stages.diffusion.engine.switchboard import RequestGreenlet
from omnistage.stages.diffusion.loading.adapter_weights import AdapterWeights

NAME = "second_pass"


@dataclass(frozen=True, slots=True)
class PassAdapter:
    """A LoRA that a pipeline has loaded, and that works while it is `used`.

    Below the engine only calls of the request that uses it are made with it; requests whose calls
    are equal in this share forwards as always.
    """

    weights: AdapterWeights
    parts: tuple[str, ...]  # of the pipeline, that it changes
    scale: float = 1.0

    @classmethod
    def load(cls, pipeline: Any, path: str) -> Self:
        """Load a file, unused until then; raises ValueError for one that does not fit."""
        if not Path(path).is_file():
            raise ValueError(f"custom_pipeline_args.lora: {path} is no file")
        weights = AdapterWeights(pipeline)
        try:
            weights.load(NAME, path, None)
        except Exception as error:  # whatever a file makes Diffusers or peft raise
            raise ValueError(f"custom_pipeline_args.lora: {path}: {error}") from error
        made = cls(weights, tuple(pipeline.get_list_adapters()))
        made._put(())
        return made

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make the calls of this request, or of a bare call, with the adapter."""
        current, scales = getcurrent(), ((NAME, self.scale),)
        if not isinstance(current, RequestGreenlet):
            self._put(scales)
            try:
                yield
            finally:
                self._put(())
            return
        before = current.setting
        current.setting = replace(before, adapters=(*before.adapters, *scales))
        try:
            yield
        finally:
            current.setting = before

    def _put(self, scales: tuple[tuple[str, float], ...]) -> None:
        for part in self.parts:
            self.weights.put(part, scales)
