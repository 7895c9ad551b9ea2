"""How calls go from rank to rank: what is around tensors by pipes, the tensors by the group."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ALIGNMENT = 16  # bytes: a tensor of any type may begin there


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor is in the bytes of all, and what it is."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_on_host: bool

    @property
    def num_bytes(self) -> int:
        """Of its values."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Header:
    """An object without its tensors. Only our own processes read it: it is a pickle."""

    pickled: bytes
    places: tuple[Place, ...]

    @property
    def num_bytes(self) -> int:
        """Of all tensors together."""
        return _end(self.places)


class _Pickler(pickle.Pickler):
    """Leaves tensors out and numbers them; one that is there twice is taken once."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        """The number of a tensor."""
        if not isinstance(value, torch.Tensor):
            return None
        number = self._numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> torch.Tensor:
        """The tensor of a number."""
        found: torch.Tensor = self._tensors[number]
        return found


def pack(value: Any) -> tuple[Header, list[torch.Tensor]]:
    """An object, and its tensors."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    places: list[Place] = []
    for tensor in pickler.tensors:
        is_on_host = tensor.device.type == "cpu"
        places.append(Place(_end(places), tuple(tensor.shape), tensor.dtype, is_on_host))
    return Header(file.getvalue(), tuple(places)), pickler.tensors


def unpack(header: Header, tensors: Sequence[torch.Tensor]) -> Any:
    """The object with its tensors."""
    return _Unpickler(io.BytesIO(header.pickled), tensors).load()


def room_for(header: Header, device: torch.device) -> torch.Tensor:
    """Where the bytes of all tensors go."""
    return torch.empty(header.num_bytes, dtype=torch.uint8, device=device)


def as_bytes(header: Header, tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """All tensors one after another, on a device."""
    flat = room_for(header, device)
    for place, tensor in zip(header.places, tensors, strict=True):
        values = flat[place.start : place.start + place.num_bytes].view(place.dtype)
        values.copy_(tensor.detach().reshape(-1))
    return flat


def from_bytes(header: Header, flat: torch.Tensor) -> list[torch.Tensor]:
    """The tensors again; those that were on the host are there."""
    return [_tensor(place, flat) for place in header.places]


def _tensor(place: Place, flat: torch.Tensor) -> torch.Tensor:
    values = flat[place.start : place.start + place.num_bytes].view(place.dtype)
    made: torch.Tensor = values.reshape(place.shape)
    return made.cpu() if place.is_on_host else made


def _end(places: Sequence[Place]) -> int:
    """Where the next tensor may begin."""
    if not places:
        return 0
    end = places[-1].start + places[-1].num_bytes
    return -(-end // ALIGNMENT) * ALIGNMENT
