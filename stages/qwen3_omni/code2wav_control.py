"""Commands to code2wav: its weights and its streams' states off their device, and other weights."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.device.memory import release_cached
from omnistage.stages.qwen3_omni.code2wav import Code2Wav
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.qwen3_omni.vocoder_weights import empty_vocoder, load_vocoder
from omnistage.stages.worker.failure import RequestError

TAGS = ("weights", "kv_cache")  # an engine's of vLLM; here the second is the streams' states
COMMANDS = dict.fromkeys(("sleep", "wake", "load_weights"), "")
HOST = torch.device("cpu")


class Code2WavControl:
    """Obeys them while no request is in the stage and no step runs.

    A vocoder that is awake is made anew of its model: states and CUDA graphs are not moved.
    """

    def __init__(self, engine: Code2Wav, model: str, has_weights: bool) -> None:
        vocoder = engine.vocoder
        self._engine = engine
        self._own = self._folder = model  # or its name; where weights that are dropped come from
        self._has_weights = has_weights
        self._model: Qwen3OmniMoeCode2Wav | None = vocoder.model
        self._device, self._num_slots = vocoder.device, vocoder.num_slots
        self._dtype = next(_module(vocoder.model).parameters()).dtype
        self._asleep: tuple[str, ...] = ()

    def obey(self, command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do it; RequestError refuses it."""
        if self._engine.num_streams:
            raise RequestError(409, "requests are in the stage", code="busy")
        run: Callable[..., None] = getattr(self, f"_{command}")
        run(**arguments)
        return {"asleep": list(self._asleep)}

    def _sleep(self, level: int, tags: Collection[str] | None) -> None:
        if tags is not None:
            message = "code2wav sleeps as a whole; tags are for wake"
            raise RequestError(400, message, param="tags", code="invalid_value")
        if self._asleep:
            return
        if level == 2 and self._is_gone:
            message = f"{self._folder}, where the weights came from, is gone"
            raise RequestError(400, message, param="level", code="invalid_value")
        self._put_nothing()
        self._model = None if level == 2 else self._moved(HOST)
        release_cached()
        self._asleep = TAGS

    @property
    def _is_gone(self) -> bool:
        """Whether the folder of other weights is there no more; a model's own name is no folder."""
        return self._folder != self._own and not Path(self._folder).is_dir()

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
        self._asleep = tuple(tag for tag in self._asleep if tag not in waking)
        if waking and not self._asleep:
            self._make_vocoder()

    def _load_weights(self, path: str | None) -> None:
        if "weights" in self._asleep:
            raise RequestError(409, "the weights are asleep; wake them first", code="sleeping")
        folder = self._folder if path is None else path
        fresh = self._checked(folder) if path is not None else self._read(folder, HOST)
        self._put_nothing()
        self._model = fresh
        release_cached()
        self._folder, self._has_weights = folder, self._has_weights or path is not None
        self._model = self._moved(self._device)
        if not self._asleep:
            self._make_vocoder()

    def _checked(self, path: str) -> Qwen3OmniMoeCode2Wav:
        """The model of a folder, on the host; RequestError for one that does not fit."""
        if not Path(path).is_dir():
            raise _refused(f"{path} is no folder of this machine")
        try:
            fresh = load_vocoder(path, HOST, self._dtype)
        except Exception as error:  # whatever a folder makes safetensors or transformers raise
            raise _refused(f"{path} cannot be read: {error}") from error
        assert self._model is not None
        found = _shapes(fresh)
        for name, shape in _shapes(self._model).items():
            if found.get(name) != shape:
                raise _refused(f"{path} does not fit: {name} is {found.get(name)}, not {shape}")
        return fresh

    def _read(self, folder: str, device: torch.device) -> Qwen3OmniMoeCode2Wav:
        return load_vocoder(folder, device, self._dtype, has_weights=self._has_weights)

    def _moved(self, device: torch.device) -> Qwen3OmniMoeCode2Wav:
        assert self._model is not None
        _module(self._model).to(device)
        return self._model

    def _put_nothing(self) -> None:
        """The engine's vocoder is shapes alone: weights, states and graphs go with the old one."""
        empty = empty_vocoder(self._own, self._dtype)
        self._engine.put(StreamingVocoder(empty, num_slots=1))

    def _make_vocoder(self) -> None:
        assert self._model is not None
        self._engine.put(StreamingVocoder(self._model, self._num_slots))
        self._engine.warm_up()


def _module(model: Qwen3OmniMoeCode2Wav) -> nn.Module:
    module: nn.Module = model
    return module


def _shapes(model: Qwen3OmniMoeCode2Wav) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in _module(model).named_parameters()}


def _refused(problem: str) -> RequestError:
    return RequestError(400, problem, param="path", code="invalid_value")
