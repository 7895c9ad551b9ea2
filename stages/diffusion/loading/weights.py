"""Where a pipeline's weights are: on their device, in the host's memory, or nowhere."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from omnistage.stages.diffusion.loading.movable import pin
from omnistage.stages.diffusion.loading.other_weights import (
    ADAPTER,
    WRAPPED,
    OtherWeights,
    Tensors,
    modules_of,
    stored_of,
)
from omnistage.stages.diffusion.loading.shards import Shards
from omnistage.stages.diffusion.pipeline import HasComponents, Pipeline
from omnistage.stages.worker.failure import RequestError

HOST = torch.device("cpu")
ALL = "weights"  # the tag of every part


class Weights:
    """Takes a pipeline's weights off their device, puts them back, and exchanges them.

    For the engine's thread while there is no request. `read` reads the pipeline of a folder, or
    its own again, on the host. `is_whole`: every part of the pipeline is here.
    """

    def __init__(
        self, pipeline: Pipeline, read: Callable[[str | None], HasComponents], is_whole: bool = True
    ) -> None:
        self._parts = modules_of(pipeline)
        self._others = OtherWeights(self._parts, read, is_whole)
        self._homes: dict[torch.Tensor, torch.device] = {}
        self._shards = Shards()
        self._levels: dict[str, int] = {}
        self._folders: dict[str, str] = {}  # of other weights, by part
        self._prepared: tuple[Mapping[str, Tensors], str | None] | None = None

    @property
    def asleep(self) -> list[str]:
        """The parts whose weights are away."""
        return sorted(self._levels)

    def sleep(self, level: int, tags: Collection[str] | None) -> None:
        """1: to the host. 2: dropped; adapters and buffers, which no folder has, go to the host."""
        names = [name for name in self._named(tags) if self._levels.get(name, 0) < level]
        if level == 2:
            self._check_folders(names)
        for name in names:
            self._take(self._parts[name], level == 1)
            self._levels[name] = level
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _take(self, part: torch.nn.Module, keeps: bool) -> None:
        tensors = list(tensors_of(part))
        kept = [tensor for tensor in tensors if not isinstance(tensor, DTensor)]
        self._homes |= {tensor: tensor.device for tensor in kept if tensor not in self._homes}
        if not keeps:
            weights = {weight for _, weight in weights_of(part)}
            for weight in weights.intersection(kept):
                weight.data = torch.empty(0, dtype=weight.dtype)
            kept = [tensor for tensor in kept if tensor not in weights]
        pin([tensor for tensor in kept if tensor.device != HOST])  # fast to copy from and to
        self._shards.take([one for one in tensors if isinstance(one, DTensor)], keeps)

    def wake(self, tags: Collection[str] | None) -> None:
        """Put them back; those that were dropped are read from where they came from."""
        names = [name for name in self._named(tags) if name in self._levels]
        self._read_again([name for name in names if self._levels[name] == 2])
        for name in names:
            tensors = list(tensors_of(self._parts[name]))
            self._shards.put_back([one for one in tensors if isinstance(one, DTensor)])
            for tensor in tensors:
                if not isinstance(tensor, DTensor):
                    tensor.data = tensor.data.to(self._homes.get(tensor, tensor.device))
                    self._homes.pop(tensor, None)
            del self._levels[name]

    def load(self, folder: str | None) -> None:
        """Other weights of the same shapes, without a folder the last ones; what sleeps stays so.

        Nothing is changed if something does not fit.
        """
        self.prepare(folder)
        self.exchange()

    def prepare(self, folder: str | None) -> None:
        """Read and check them for `exchange`; raises RequestError."""
        self.forget()
        if folder is None:
            self._prepared = self._last(list(self._parts)), None
        else:
            self._prepared = self._others.of(folder), folder

    def exchange(self) -> None:
        """Put those in that were prepared."""
        assert self._prepared is not None
        fresh, folder = self._prepared
        self.forget()
        self._fill(fresh)
        if folder is not None:
            self._folders.update(dict.fromkeys(fresh, folder))

    def forget(self) -> None:
        """Drop what was prepared."""
        self._prepared = None

    def _last(self, names: Sequence[str]) -> dict[str, Tensors]:
        """The parts' weights from where each part's came from."""
        found: dict[str, Tensors] = {}
        for folder in {self._folders.get(name) for name in names}:
            read = self._others.of(folder)
            found |= {one: read[one] for one in names if self._folders.get(one) == folder}
        return found

    def _read_again(self, names: Sequence[str]) -> None:
        self._fill(self._last(names))

    def _fill(self, fresh: Mapping[str, Tensors]) -> None:
        for name, tensors in fresh.items():
            for path, tensor in stored_of(self._parts[name]):
                if path in tensors:
                    self._set(tensor, tensors[path])
            self._levels.update({name: 1} if name in self._levels else {})

    def _set(self, tensor: torch.Tensor, fresh: torch.Tensor) -> None:
        if isinstance(tensor, DTensor):
            self._shards.set(tensor, fresh.detach())
        else:
            tensor.data = fresh.detach().to(tensor.device, tensor.dtype, copy=True)

    def _check_folders(self, names: Sequence[str]) -> None:
        """Refuses to drop weights that cannot be read again."""
        for name in names:
            folder = self._folders.get(name)
            if folder is not None and not Path(folder).is_dir():
                message = f"{folder}, where the weights of {name} came from, is gone"
                raise RequestError(400, message, param="level", code="invalid_value")

    def _named(self, tags: Collection[str] | None) -> list[str]:
        for tag in tags or ():
            if tag != ALL and tag not in self._parts:
                allowed = ", ".join([ALL, *self._parts])
                message = f"no part {tag!r}; allowed: {allowed}"
                raise RequestError(400, message, param="tags", code="invalid_value")
        is_all = tags is None or ALL in tags
        return [name for name in self._parts if is_all or name in (tags or ())]


def weights_of(part: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """A part's weights by the names that they have without adapters, and not the adapters'."""
    for path, weight in part.named_parameters():
        if ADAPTER not in path:
            yield path.replace(WRAPPED, ""), weight


def tensors_of(part: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Weights, adapters and buffers."""
    yield from part.parameters()
    yield from part.buffers()
