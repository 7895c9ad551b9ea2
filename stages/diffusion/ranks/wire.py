"""How calls go from rank to rank: what is around tensors by pipes, the tensors by the group.

What is around them is a tree of nodes, as msgpack. A value that has no node is refused before
anything leaves, and what arrives makes objects of known classes only.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from math import prod
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import torch
from diffusers.utils import BaseOutput
from transformers.utils import ModelOutput

from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.ranks.tiles import FromBefore, TileCall

ALIGNMENT = 16  # bytes: a tensor of any type may begin there

DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
PLAIN = frozenset({NoneType, bool, int, float, str})
OURS = (FromBefore, TileCall, TorchModes)
OUTPUTS = (BaseOutput, ModelOutput)  # what models give is of their subclasses

# Torch's own values: the names of their types in records, and what makes them again.
TORCH_KINDS: Mapping[type, str] = {torch.dtype: "dtype", torch.device: "device", torch.Size: "size"}
MAKERS: Mapping[str, Callable[..., object]] = {
    "dtype": DTYPES.__getitem__,
    "device": torch.device,
    "size": lambda *lengths: torch.Size(lengths),
}


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where one tensor is in the bytes of all, and what it is."""

    start: int
    shape: tuple[int, ...]
    dtype: str  # of DTYPES
    is_on_host: bool

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of its values."""
        return DTYPES[self.dtype].itemsize * prod(self.shape)


class Header(msgspec.Struct, frozen=True, array_like=True):
    """An object without its tensors. `tree`: a Node."""

    tree: bytes
    places: tuple[Place, ...]

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all tensors together."""
        return _end(self.places)


class TensorMark(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Stands for one of the tensors beside the tree."""

    number: int


class Again(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A list or dict that was there before; they are counted together, outer ones first."""

    number: int


class Tuple(msgspec.Struct, frozen=True, array_like=True, tag=2):
    items: list["Node"]


class List(msgspec.Struct, frozen=True, array_like=True, tag=3):
    items: list["Node"]


class Dict(msgspec.Struct, frozen=True, array_like=True, tag=4):
    items: dict[bool | int | float | str | None, "Node"]


class TreeRecord(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """An object of TORCH_KINDS, or of a dataclass: its fields in their order."""

    kind: str
    items: list["Node"]


Node = bool | int | float | str | TensorMark | Again | Tuple | List | Dict | TreeRecord | None

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


class NotSendable(TypeError):
    """`what` is nothing that ranks send each other. `place`: where it is."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.what, self.place = what, place

    def __str__(self) -> str:
        return f"{self.place}: {self.what} cannot be sent to another rank".removeprefix(": ")


class _Packer:
    """Leaves tensors out and numbers them; one that is there twice is taken once."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # numbers of lists and dicts

    def node(self, value: Any) -> Node:
        """The Node of a value; raises NotSendable."""
        kind: type = type(value)
        if kind in PLAIN:
            plain: Node = value
            return plain
        if kind is tuple:
            return Tuple(self._nodes(value))
        if kind is list or kind is dict:
            if id(value) in self._seen:
                return Again(self._seen[id(value)])
            self._seen[id(value)] = len(self._seen)
            if kind is list:
                return List(self._nodes(value))
            if not PLAIN.issuperset(map(type, value)):
                raise NotSendable("a dict whose keys are no plain values")
            return Dict(dict(zip(value, self._nodes(value.values(), value), strict=True)))
        if isinstance(value, torch.Tensor):
            number = self._numbers.setdefault(id(value), len(self.tensors))
            if number == len(self.tensors):
                self.tensors.append(value)
            return TensorMark(number)
        if kind in TORCH_KINDS:
            return TreeRecord(
                TORCH_KINDS[kind], list(value) if kind is torch.Size else [str(value)]
            )
        if isinstance(value, np.generic):
            return self.node(value.item())
        name, names = _outline(kind)
        return TreeRecord(name, self._nodes([getattr(value, one) for one in names], names))

    def _nodes(self, values: Iterable[Any], names: Iterable[object] = ()) -> list[Node]:
        """Returns the nodes of all; if one has none, the error names it. `names`: of entries or
        fields.
        """
        made: list[Node] = []
        try:
            for value in values:
                made.append(value if type(value) in PLAIN else self.node(value))
        except NotSendable as error:
            step = f".{list(names)[len(made)]}" if names else f"[{len(made)}]"
            error.place = step + error.place
            raise
        return made


def _value(node: Node, tensors: Sequence[torch.Tensor], seen: list[object]) -> object:
    """Returns what a Node stands for. `seen`: the lists and dicts before it."""
    if not isinstance(node, msgspec.Struct):
        return node
    if isinstance(node, TensorMark):
        return tensors[node.number]
    if isinstance(node, Again):
        return seen[node.number]
    if isinstance(node, Dict):
        entries: dict[object, object] = {}
        seen.append(entries)
        for key, one in node.items.items():
            entries[key] = _value(one, tensors, seen)
        return entries
    items: list[object] = []
    if isinstance(node, List):
        seen.append(items)
    for one in node.items:
        items.append(one if type(one) in PLAIN else _value(one, tensors, seen))
    if isinstance(node, TreeRecord):
        return (MAKERS.get(node.kind) or _class_of(node.kind))(*items)
    return items if isinstance(node, List) else tuple(items)


@cache
def _outline(kind: type) -> tuple[str, list[str]]:
    """The name of a class whose objects may be sent, and its fields'; raises NotSendable."""
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if _class_of(name) is not kind:
        raise NotSendable(f"a {name}")
    return name, [one.name for one in fields(kind)]


@cache
def _class_of(name: str) -> Any:
    """The class of a name; raises NotSendable if no message may name it. Nothing is imported."""
    module, _, within = name.rpartition(".")
    made: Any = vars(sys.modules[module]).get(within) if module in sys.modules else None
    is_output = isinstance(made, type) and issubclass(made, OUTPUTS) and is_dataclass(made)
    if not is_output and not any(made is one for one in OURS):
        raise NotSendable(f"a {name}")
    return made


def pack(value: object, name: str = "value") -> tuple[Header, list[torch.Tensor]]:
    """An object, and its tensors.

    Raises NotSendable, a TypeError: "`name`[1].mask: a function cannot be sent to another rank".
    """
    packer = _Packer()
    try:
        tree = _encoder.encode(packer.node(value))
    except NotSendable as error:
        error.place = name + error.place
        raise
    except (OverflowError, UnicodeEncodeError) as error:
        raise NotSendable(f"a number or text of it ({error})", name) from error
    places: list[Place] = []
    for tensor in packer.tensors:
        shape, dtype = tuple(tensor.shape), str(tensor.dtype)
        places.append(Place(_end(places), shape, dtype, tensor.is_cpu))
    return Header(tree, tuple(places)), packer.tensors


def unpack(header: Header, tensors: Sequence[torch.Tensor]) -> object:
    """The object with its tensors. Raises NotSendable for a class that no message may name."""
    return _value(_decoder.decode(header.tree), tensors, [])


def room_for(header: Header, device: torch.device) -> torch.Tensor:
    """Where the bytes of all tensors go."""
    return torch.empty(header.num_bytes, dtype=torch.uint8, device=device)


def as_bytes(header: Header, tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """All tensors one after another, on a device."""
    flat = room_for(header, device)
    for place, tensor in zip(header.places, tensors, strict=True):
        values = flat[place.start : place.start + place.num_bytes].view(DTYPES[place.dtype])
        values.copy_(tensor.detach().reshape(-1))
    return flat


def from_bytes(header: Header, flat: torch.Tensor) -> list[torch.Tensor]:
    """The tensors again; those that were on the host are there."""
    return [_tensor(place, flat) for place in header.places]


def _tensor(place: Place, flat: torch.Tensor) -> torch.Tensor:
    values = flat[place.start : place.start + place.num_bytes].view(DTYPES[place.dtype])
    made: torch.Tensor = values.reshape(place.shape)
    return made.cpu() if place.is_on_host else made


def _end(places: Sequence[Place]) -> int:
    """Where the next tensor may begin."""
    if not places:
        return 0
    end = places[-1].start + places[-1].num_bytes
    return -(-end // ALIGNMENT) * ALIGNMENT
