"""LoRA adapters of a pipeline: which are loaded, and which a part works with now."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.packages import is_installed, not_installed
from omnistage.stages.diffusion.loading.adapter_weights import AdapterWeights
from omnistage.stages.diffusion.merging.setting import Scales
from omnistage.stages.diffusion.pipeline import Pipeline
from omnistage.stages.worker.failure import RequestError

MAX_ADAPTERS = 8


@dataclass(slots=True)
class PipelineAdapter:
    """One that is loaded. `key`: peft's name for it, of this loading only."""

    key: str
    path: str
    pinned: bool


class PipelineAdapters:
    """Loads, evicts and switches adapters.

    `add` and `remove` are for the engine's thread, between two steps; `put` for the thread that is
    about to run the part; the rest for any.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        max_adapters: int = MAX_ADAPTERS,
        weights: AdapterWeights | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._max = max_adapters
        self._weights = weights or AdapterWeights(pipeline)
        self._loaded: OrderedDict[str, PipelineAdapter] = (
            OrderedDict()
        )  # the one used last comes last
        self._users: Counter[str] = Counter()
        self._serial = count()
        self._lock = threading.Lock()  # of what is loaded and who uses it

    @property
    def refusal(self) -> str:
        """Why the pipeline takes none; empty if it does."""
        if not is_installed("peft"):
            return not_installed("peft")
        if hasattr(self._pipeline, "load_lora_weights"):
            return ""
        return f"{type(self._pipeline).__name__} takes no LoRA"

    @property
    def listed(self) -> list[dict[str, object]]:
        """All that are loaded, the one used last first."""
        return [
            {"name": name, "path": one.path, "pinned": one.pinned, "in_use": self._users[one.key]}
            for name, one in reversed(self._loaded.items())
        ]

    def add(self, name: str, path: str, weight_name: str | None, pinned: bool) -> None:
        """Load one, and evict the one that was used longest ago if there are too many."""
        if name in self._loaded:
            raise RequestError(409, f"the LoRA {name!r} is there already", param="name")
        _check_path(path, weight_name)
        key = f"lora{next(self._serial)}"
        try:
            self._weights.load(key, path, weight_name)
        except Exception as error:  # whatever a file makes Diffusers or peft raise
            message = f"{path} is no LoRA for this pipeline: {error}"
            raise RequestError(400, message, param="path", code="invalid_value") from error
        self._make_room(key)
        with self._lock:
            self._loaded[name] = PipelineAdapter(key, path, pinned)

    def _make_room(self, new: str) -> None:
        if len(self._loaded) < self._max:
            return
        with self._lock:
            idle = (n for n, a in self._loaded.items() if not a.pinned and not self._users[a.key])
            name = next(idle, None)
            evicted = None if name is None else self._loaded.pop(name)
        self._weights.delete(new if evicted is None else evicted.key)
        if evicted is None:
            message = f"all {self._max} LoRAs are pinned or in use; remove one"
            raise RequestError(409, message, param="name", code="lora_limit")

    def remove(self, name: str) -> None:
        """Unload one that no request uses."""
        with self._lock:
            one = self._known(name, "name")
            if self._users[one.key]:
                message = f"{self._users[one.key]} requests use the LoRA {name!r}"
                raise RequestError(409, message, param="name", code="lora_in_use")
            del self._loaded[name]
        self._weights.delete(one.key)

    def pin(self, name: str, pinned: bool) -> None:
        """Keep one from being evicted, or no longer."""
        self._known(name, "name").pinned = pinned

    def _known(self, name: str, param: str) -> PipelineAdapter:
        one = self._loaded.get(name)
        if one is None:
            names = ", ".join(sorted(self._loaded)) or "none"
            message = f"the LoRA {name!r} is unknown; loaded: {names}"
            raise RequestError(400, message, param=param, code="invalid_value")
        return one

    # Requests

    def use(self, asked: Sequence[JsonMap]) -> Scales:
        """Yields a request's adapters, in use until given back; RequestError for an unknown one."""
        with self._lock:
            keys = [
                self._known(one["name"], f"lora[{index}].name").key
                for index, one in enumerate(asked)
            ]
            for one in asked:
                self._loaded.move_to_end(one["name"])
            self._users.update(keys)
        scales = (float(one.get("scale", 1.0)) for one in asked)
        return tuple(zip(keys, scales, strict=True))

    def give_back(self, scales: Scales) -> None:
        """The request has ended."""
        with self._lock:
            self._users.subtract(key for key, _ in scales)

    def put(self, name: str, scales: Scales) -> None:
        """Let a part of the pipeline work with these adapters and no other."""
        self._weights.put(name, scales)

    def of_part(self, name: str, scales: Scales) -> Scales:
        """Returns the adapters that change something in this part."""
        return self._weights.of_part(name, scales)


def _check_path(path: str, weight_name: str | None) -> None:
    where = Path(path)
    if where.is_file():
        if weight_name is not None:
            message = "weight_name is for a folder"
            raise RequestError(400, message, param="weight_name", code="invalid_value")
        return
    if not where.is_dir():
        message = f"{path} is neither a file nor a folder of this machine"
        raise RequestError(400, message, param="path", code="invalid_value")
    files = sorted(file.name for file in where.glob("*.safetensors"))
    if weight_name is None and len(files) != 1:
        message = f"{path} has {len(files)} safetensors files; weight_name says which"
        raise RequestError(400, message, param="weight_name", code="invalid_value")
    if weight_name is not None and weight_name not in files:
        message = f"{path} has no {weight_name}; it has {', '.join(files) or 'none'}"
        raise RequestError(400, message, param="weight_name", code="invalid_value")
