"""Commands to a streaming decoder: weights and streams' states off its device, other weights."""

import gc
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.device.memory import release_cached
from omnistage.stages.vocoder.decoder import Decoder, State
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.worker.failure import RequestError

TAGS = ("weights", "kv_cache")  # an engine's of vLLM; here the second is the streams' states
COMMANDS = ("sleep", "wake", "load_weights")
HOST = torch.device("cpu")

Model = TypeVar("Model", bound=nn.Module)


class DecoderWeights(Protocol[Model, State]):
    """How a family reads its decoder's model again, and makes a decoder of it."""

    @property
    def folder(self) -> str:
        """The stage's own: the model's folder, or its name."""

    @property
    def are_stored(self) -> bool:
        """Returns whether the stage's own are read from there, and not made up."""

    def model_of(self, decoder: Decoder[State]) -> Model:
        """Returns what a decoder was made of."""

    def read(self, folder: str, device: torch.device, *, are_stored: bool) -> Model:
        """The model of a folder; raises whatever the folder makes libraries raise."""

    def decoder(self, model: Model) -> Decoder[State]:
        """A decoder of all the stage's slots."""

    def nothing(self) -> Decoder[State]:
        """A decoder that takes no memory."""


class DecoderControl(Generic[Model, State]):
    """Obeys them while no request is in the stage and no step runs.

    A decoder that is awake is made anew of its model: states and CUDA graphs are not moved.
    """

    def __init__(self, engine: DecoderEngine[State], weights: DecoderWeights[Model, State]) -> None:
        self._engine = engine
        self._weights = weights
        self._folder = weights.folder  # where weights that are dropped come from
        self._are_stored = weights.are_stored
        self._model: Model | None = weights.model_of(engine.decoder)
        self._device = engine.decoder.device
        self._asleep: tuple[str, ...] = ()

    def obey(self, command: str, arguments: JsonMap) -> JsonMap:
        """Do it; RequestError refuses it."""
        if self._engine.num_streams:
            raise RequestError(409, "requests are in the stage", code="busy")
        run: Callable[..., None] = getattr(self, f"_{command}")
        run(**arguments)
        return {"asleep": list(self._asleep)}

    def _sleep(self, level: int, tags: Collection[str] | None) -> None:
        if tags is not None:
            message = "a decoder sleeps as a whole; tags are for wake"
            raise RequestError(400, message, param="tags", code="invalid_value")
        if self._asleep:
            return
        if level == 2 and self._is_gone:
            message = f"{self._folder}, where the weights came from, is gone"
            raise RequestError(400, message, param="level", code="invalid_value")
        self._engine.put(self._weights.nothing())
        self._model = None if level == 2 else self._moved(HOST)
        gc.collect()  # what a decoder recorded may refer to it, and holds its memory
        release_cached()
        self._asleep = TAGS

    @property
    def _is_gone(self) -> bool:
        """Returns whether the folder of other weights is there no more; a model's own name is no
        folder.
        """
        return self._folder != self._weights.folder and not Path(self._folder).is_dir()

    def _wake(self, tags: Collection[str] | None) -> None:
        for tag in tags or ():
            if tag not in TAGS:
                message = f"no part {tag!r}; allowed: {', '.join(TAGS)}"
                raise RequestError(400, message, param="tags", code="invalid_value")
        waking = [tag for tag in self._asleep if tags is None or tag in tags]
        if "weights" in waking and self._model is None:
            self._model = self._read(self._folder, self._device)
        elif "weights" in waking:
            self._model = self._moved(self._device)
        asleep = tuple(tag for tag in self._asleep if tag not in waking)
        if waking and not asleep:
            self._make_decoder()
        self._asleep = asleep  # a wake that failed can be tried again

    def _load_weights(self, path: str | None) -> None:
        if "weights" in self._asleep:
            raise RequestError(409, "the weights are asleep; wake them first", code="sleeping")
        folder = self._folder if path is None else path
        fresh = self._checked(folder) if path is not None else self._read(folder, HOST)
        before = self._folder, self._are_stored
        try:
            self._exchange(fresh, folder, self._are_stored or path is not None)
        except Exception as error:
            self._exchange(self._read(before[0], HOST), *before)
            raise _refused(f"{folder} cannot be loaded: {error}") from error

    def _exchange(self, fresh: Model, folder: str, are_stored: bool) -> None:
        self._engine.put(self._weights.nothing())
        self._model = fresh
        gc.collect()
        release_cached()
        self._folder, self._are_stored = folder, are_stored
        self._model = self._moved(self._device)
        if not self._asleep:
            self._make_decoder()

    def _checked(self, path: str) -> Model:
        """The model of a folder, on the host; RequestError for one that does not fit."""
        if not Path(path).is_dir():
            raise _refused(f"{path} is no folder of this machine")
        try:
            fresh = self._weights.read(path, HOST, are_stored=True)
        except Exception as error:  # whatever a folder makes safetensors or transformers raise
            raise _refused(f"{path} cannot be read: {error}") from error
        assert self._model is not None
        found = _shapes(fresh)
        for name, shape in _shapes(self._model).items():
            if found.get(name) != shape:
                raise _refused(f"{path} does not fit: {name} is {found.get(name)}, not {shape}")
        return fresh

    def _read(self, folder: str, device: torch.device) -> Model:
        return self._weights.read(folder, device, are_stored=self._are_stored)

    def _moved(self, device: torch.device) -> Model:
        assert self._model is not None
        return self._model.to(device)

    def _make_decoder(self) -> None:
        assert self._model is not None
        self._engine.put(self._weights.decoder(self._model))
        self._engine.warm_up()


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in model.named_parameters()}


def _refused(problem: str) -> RequestError:
    return RequestError(400, problem, param="path", code="invalid_value")
