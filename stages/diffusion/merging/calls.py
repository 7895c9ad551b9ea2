"""Calls of a pipeline's modules by its requests: how they are bound, split and compared."""

import copy
import inspect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache

from omnistage.stages.diffusion.merging.containers import is_object, leaves, outline
from omnistage.stages.diffusion.merging.setting import DEFAULT, Setting
from omnistage.stages.diffusion.merging.stopping import Cancellation
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.pipeline import Arguments

# How far a result may be from the one that it must equal: its distance over its length, in epsilons
# of its type. Other kernels round otherwise; a row that another one changed is farther.
MAX_EPSILONS = 32


class Target(Protocol):
    """One method. `run` gives a result for each of the calls, which may be one."""

    name: str

    def call(self, args: Sequence[object], kwargs: Arguments) -> "Call": ...

    def may_join(self, one: "Call", other: "Call") -> bool: ...

    def run(self, calls: Sequence["Call"]) -> list[object]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call, and what decides which others may share its forward.

    `arguments` are by name, those in dicts by `name.key`. `key`: equal for calls that may be one
    but for the values that they must share; None: it runs alone. `size`: its rows. `stop`: its
    request's.
    """

    target: Target
    arguments: Arguments
    modes: TorchModes
    size: int = 1
    key: Hashable | None = None
    setting: Setting = DEFAULT
    stop: Cancellation = field(default_factory=Cancellation)


def bind(
    signature: inspect.Signature, args: Sequence[object], kwargs: Arguments
) -> dict[str, object]:
    """A call's arguments by name; raises TypeError as the call itself would."""
    named = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return dict(_flat(named))


def nested(arguments: Arguments) -> dict[str, object]:
    """Returns what a function is called with: `name.key` are in dicts again."""
    made: dict[str, Any] = {}
    for path, value in arguments.items():
        place = made
        *outer, name = path.split(".")
        for key in outer:
            place = place.setdefault(key, {})
        place[name] = value
    return made


def _flat(arguments: Arguments, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in arguments.items():
        if type(value) is dict and value and all(type(k) is str and "." not in k for k in value):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def split(result: object, sizes: Sequence[int], has_row_lists: bool = False) -> list[object]:
    """A result for each of the calls that were merged: tensors have the batch first.

    `has_row_lists`: its lists have an item a row; other lists have their tensors' rows. Raises
    ValueError or RuntimeError for what has no rows.
    """
    if isinstance(result, torch.Tensor):
        return list(result.split(list(sizes)))
    if has_row_lists and isinstance(result, list) and len(result) == sum(sizes):
        rows = iter(result)
        return [[next(rows) for _ in range(size)] for size in sizes]
    if isinstance(result, Cache):
        return list(_split_cache(result, sizes))
    if isinstance(result, tuple | list):
        parts = [split(item, sizes, has_row_lists) for item in result]
        made = list if isinstance(result, list) else tuple
        return [made(part[index] for part in parts) for index in range(len(sizes))]
    if isinstance(result, Mapping):  # a ModelOutput, too
        split_values = {name: split(value, sizes, has_row_lists) for name, value in result.items()}
        return [
            _mapping(result, {name: values[index] for name, values in split_values.items()})
            for index in range(len(sizes))
        ]
    if result is None or isinstance(result, bool | int | float | str):
        return [result] * len(sizes)
    raise ValueError(f"a result of type {type(result).__name__} cannot be taken apart")


def _mapping(like: object, values: Mapping[str, object]) -> object:
    """Return a dict, or an output of a model, with these values."""
    return dict(values) if type(like) is dict else type(like)(**values)


def joined_rows(results: Sequence[Any], has_row_lists: bool = False) -> object:
    """The result of which these are the rows, as `split` takes it apart.

    `has_row_lists`: its lists have an item a row, not one for all rows.
    """
    first = results[0]
    if len(results) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(results))
    if isinstance(first, list) and has_row_lists:
        return [row for rows in results for row in rows]
    if isinstance(first, tuple | list):
        parts = zip(*results, strict=True)
        return type(first)(joined_rows(part, has_row_lists) for part in parts)
    if isinstance(first, Mapping):
        values = {name: [one[name] for one in results] for name in first}
        return _mapping(first, {k: joined_rows(v, has_row_lists) for k, v in values.items()})
    if first is None or isinstance(first, bool | int | float | str):
        return first
    raise ValueError(f"results of type {type(first).__name__} cannot be put together")


def has_row_lists(once: object, twice: Any) -> bool:
    """Returns whether a list of a result has an item a row, seen by a result of twice as many
    rows.
    """
    if isinstance(once, list):
        return len(once) != len(twice)
    if isinstance(once, tuple):
        return any(map(has_row_lists, once, twice))
    if isinstance(once, Mapping):
        return any(has_row_lists(value, twice[name]) for name, value in once.items())
    return False


def _split_cache(cache: Cache, sizes: Sequence[int]) -> Iterator[Cache]:
    start = 0
    for size in sizes:
        part = copy.copy(cache)
        part.layers = [copy.copy(layer) for layer in cache.layers]
        part.batch_select_indices(torch.arange(start, start + size))
        start += size
        yield part


def is_close(one: object, other: Any) -> bool:
    """Returns whether two results are the same but for rounding."""
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        distance = (one.double() - other.double()).norm()
        limit = MAX_EPSILONS * torch.finfo(one.dtype).eps * one.double().norm()
        return bool(distance <= limit)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_close(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(is_close, one, other))
    return isinstance(one, Cache) or is_same(one, other)


def is_same(one: object, other: Any) -> bool:
    """Returns whether two arguments are equal, bit by bit."""
    if isinstance(one, torch.Tensor):
        return one is other or (isinstance(other, torch.Tensor) and torch.equal(one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if is_object(one):  # by what it is made of: few define what makes two of them equal
        pairs = zip(leaves(one), leaves(other), strict=True)
        return outline(one) == outline(other) and all(torch.equal(a, b) for a, b in pairs)
    return bool(one == other)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """All tensors of a model's output, those of its key-value cache too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif type(value).__module__.startswith(("diffusers.", "transformers.")):
        yield from tensors_in(list(vars(value).values()))
