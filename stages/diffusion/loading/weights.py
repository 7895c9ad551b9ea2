"""Where a pipeline's weights are: on their device, in the host's memory, or nowhere."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from omnistage.stages.diffusion.loading.movable import pin
from omnistage.stages.worker.failure import RequestError

HOST = torch.device("cpu")
ALL = "weights"  # the tag of every part
WRAPPED = ".base_layer"  # peft puts a layer that has an adapter below this name
ADAPTER = "lora_"


class Weights:
    """Takes a pipeline's weights off their device and puts them back.

    For the engine's thread while there is no request. `read` reads the pipeline of a folder, or
    its own again, on the host.
    """

    def __init__(self, pipeline: Any, read: Callable[[str | None], Any]) -> None:
        self._read = read
        self._parts = modules_of(pipeline)
        self._shapes = {
            name: {path: tuple(weight.shape) for path, weight in weights_of(part)}
            for name, part in self._parts.items()
        }
        self._homes: dict[torch.Tensor, torch.device] = {}
        self._levels: dict[str, int] = {}

    @property
    def asleep(self) -> list[str]:
        """The parts whose weights are away."""
        return sorted(self._levels)

    def sleep(self, level: int, tags: Collection[str] | None) -> None:
        """1: to the host. 2: dropped; adapters and buffers, which no folder has, go to the host."""
        for name in self._named(tags):
            if self._levels.get(name, 0) >= level:
                continue
            kept = list(tensors_of(self._parts[name]))
            self._homes |= {tensor: tensor.device for tensor in kept if tensor not in self._homes}
            if level == 2:
                dropped = [weight for _, weight in weights_of(self._parts[name])]
                for weight in dropped:
                    weight.data = torch.empty(0, dtype=weight.dtype)
                kept = list(set(kept) - set(dropped))
            pin([tensor for tensor in kept if tensor.device != HOST])  # fast to copy from and to
            self._levels[name] = level
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wake(self, tags: Collection[str] | None) -> None:
        """Put them back; those that were dropped are read from the stage's own folder."""
        names = [name for name in self._named(tags) if name in self._levels]
        self._fill([name for name in names if self._levels[name] == 2], None)
        for name in names:
            for tensor in tensors_of(self._parts[name]):
                tensor.data = tensor.data.to(self._homes.pop(tensor, tensor.device))
            del self._levels[name]

    def load(self, folder: str | None) -> None:
        """Other weights of the same shapes, for all parts; those asleep stay so."""
        self._fill(list(self._parts), folder)

    def _fill(self, names: Sequence[str], folder: str | None) -> None:
        """Nothing is changed if something does not fit."""
        if not names:
            return
        fresh = modules_of(self._read_other(folder))
        found = {name: dict(weights_of(fresh[name])) for name in names if name in fresh}
        for name in names:
            self._check_fit(name, found.get(name, {}))
        for name in names:
            for path, weight in weights_of(self._parts[name]):
                made = found[name][path].data.to(weight.dtype)
                weight.data = made.to(weight.device)
            self._levels.update({name: 1} if name in self._levels else {})

    def _read_other(self, folder: str | None) -> Any:
        try:
            return self._read(folder)
        except Exception as error:
            if folder is None:
                raise
            message = f"{folder} cannot be read: {error}"
            raise RequestError(400, message, param="path", code="invalid_value") from error

    def _check_fit(self, name: str, fresh: Mapping[str, torch.Tensor]) -> None:
        for path, shape in self._shapes[name].items():
            if path not in fresh:
                raise _misfit(f"it has no {name}.{path}")
            if tuple(fresh[path].shape) != shape:
                raise _misfit(f"{name}.{path} is {tuple(fresh[path].shape)}, not {shape}")

    def _named(self, tags: Collection[str] | None) -> list[str]:
        for tag in tags or ():
            if tag != ALL and tag not in self._parts:
                allowed = ", ".join([ALL, *self._parts])
                message = f"no part {tag!r}; allowed: {allowed}"
                raise RequestError(400, message, param="tags", code="invalid_value")
        is_all = tags is None or ALL in tags
        return [name for name in self._parts if is_all or name in (tags or ())]


def _misfit(problem: str) -> RequestError:
    message = f"the folder does not fit: {problem}"
    return RequestError(400, message, param="path", code="invalid_value")


def modules_of(pipeline: Any) -> dict[str, torch.nn.Module]:
    """The components that have weights."""
    return {
        name: part
        for name, part in pipeline.components.items()
        if isinstance(part, torch.nn.Module) and any(True for _ in part.parameters())
    }


def weights_of(part: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """A part's weights by the names that they have without adapters, and not the adapters'."""
    for path, weight in part.named_parameters():
        if ADAPTER not in path:
            yield path.replace(WRAPPED, ""), weight


def tensors_of(part: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Weights, adapters and buffers."""
    yield from part.parameters()
    yield from part.buffers()
