"""Other weights for a running engine, from a folder like the model's own."""

from pathlib import Path
from typing import Any

from omnistage.stages.device.stored_weights import Shapes, stored_shapes
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.loading.fit import folder_of
from omnistage.stages.vllm.workers.together import call_together
from omnistage.stages.vllm.workers.weights_worker import LOAD
from omnistage.stages.worker.failure import RequestError

# Caches of what the weights before them computed.
CACHES = ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache")


class EngineWeights:
    """Reads an engine's weights again, its own or others; there is no request in it meanwhile."""

    def __init__(self, engine: AsyncLLM, prefix: str = "") -> None:
        """`prefix`: before the names of the weights that the engine loads of a checkpoint."""
        self._engine = engine
        self._folder = folder_of(engine.vllm_config.model_config)
        self._shapes = with_prefix(model_shapes(engine), prefix)
        self._prefix = prefix

    @property
    def no_source(self) -> str:
        """Why weights that are dropped are gone for good; empty if they can be read again."""
        if not self._shapes or self._folder is None:
            return "the model's folder has no safetensors weights to read them from again"
        return "" if self._folder.is_dir() else f"{self._folder}, where they came from, is gone"

    async def read_again(self) -> None:
        """Reads the engine's last weights again."""
        await self._read(self._folder)

    def checked(self, path: str | None) -> Path:
        """The folder of other weights, or of the last ones; RequestError if it does not fit."""
        folder = self._folder if path is None else Path(path)
        if folder is None:
            raise _refused(self.no_source)
        self._check(folder)
        return folder

    async def load(self, folder: Path) -> None:
        """Loads the weights of a checked folder; RequestError, with the old weights in place."""
        try:
            await self._read(folder)
        except Exception as error:
            await self._read(self._folder)
            raise _refused(f"{folder} cannot be loaded: {error}") from error
        self._folder = folder

    def _check(self, folder: Path) -> None:
        """The weights have the names and shapes of the engine's own, as far as these are known."""
        if not folder.is_dir():
            raise _refused(f"{folder} is no folder of this machine")
        try:
            found = with_prefix(stored_shapes(folder), self._prefix)
        except (OSError, ValueError) as error:
            raise _refused(f"{folder} cannot be read: {error}") from error
        if not found:
            raise _refused(f"{folder} has no safetensors weights for this stage")
        for name, shape in self._shapes.items():
            if name not in found:
                raise _refused(f"{folder} does not fit: it has no {name}")
            if found[name] != shape:
                raise _refused(f"{folder} does not fit: {name} is {found[name]}, not {shape}")

    async def _read(self, folder: Path | None) -> None:
        if folder is None:
            raise _refused(self.no_source)
        await call_together(self._engine, LOAD, str(folder))
        for name in CACHES:
            reset: Any = getattr(self._engine, name, None)
            if reset is not None:
                await reset()


def model_shapes(engine: AsyncLLM) -> Shapes:
    """Returns the shapes of an engine's model on disk; none if they are not there in
    safetensors.
    """
    folder = folder_of(engine.vllm_config.model_config)
    try:
        return {} if folder is None else stored_shapes(folder)
    except (OSError, ValueError):
        return {}


def with_prefix(shapes: Shapes, prefix: str) -> Shapes:
    """Yields the weights whose names begin with `prefix`."""
    return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}


def _refused(problem: str) -> RequestError:
    return RequestError(400, problem, param="path", code="invalid_value")
