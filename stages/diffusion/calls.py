"""A denoiser's calls by several requests, put together to one and its result taken apart.

Which arguments have a batch axis is not written down for any model: it is learned from two calls,
one with twice as many pictures as the other (`Axes.learn`).
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Axes:
    """For each argument that grows with the batch, its axis; of a list it is 0."""

    by_name: Mapping[str, int]
    probe: str  # an argument whose size along its axis is the batch

    @classmethod
    def learn(cls, once: Arguments, twice: Arguments) -> "Axes":
        """From two calls of one denoiser. Raises ValueError if nothing doubles."""
        axes: dict[str, int] = {}
        for name, value in once.items():
            axis = _doubled(value, twice.get(name))
            if axis is not None:
                axes[name] = axis
        tensors = [name for name in axes if isinstance(once[name], torch.Tensor)]
        if not tensors:
            raise ValueError("no argument of the denoiser grows with the number of pictures")
        return cls(axes, tensors[0])

    def size(self, arguments: Arguments) -> int:
        """The batch of one call."""
        return int(arguments[self.probe].shape[self.by_name[self.probe]])

    def key(self, arguments: Arguments) -> tuple[Any, ...]:
        """Equal for calls that may be one: same arguments, types and shapes but for the batch."""
        return tuple(
            (name, _form(value, self.by_name.get(name)))
            for name, value in sorted(arguments.items())
        )

    def fits(self, arguments: Arguments) -> bool:
        """Whether all that has a batch axis has the same batch: else rows cannot be told apart."""
        size = self.size(arguments)
        return all(
            _length(arguments[name], axis) in (None, size)
            for name, axis in self.by_name.items()
            if name in arguments
        )

    def may_join(self, one: Arguments, other: Arguments) -> bool:
        """Whether two calls of equal keys agree in all that has no batch axis."""
        return all(
            name in self.by_name or _is_same(value, other[name]) for name, value in one.items()
        )

    def merge(self, calls: Sequence[Arguments]) -> dict[str, Any]:
        """One call for all of them."""
        if len(calls) == 1:
            return dict(calls[0])
        merged = dict(calls[0])
        for name, axis in self.by_name.items():
            values = [call[name] for call in calls]
            if isinstance(values[0], torch.Tensor):
                merged[name] = torch.cat(values, dim=axis)
            elif values[0] is not None:
                merged[name] = [item for value in values for item in value]
        return merged


def bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Arguments) -> dict[str, Any]:
    """A call's arguments by name; raises TypeError as the call itself would."""
    named = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named


def split(result: Any, sizes: Sequence[int]) -> list[Any]:
    """A result for each of the calls that were merged; all its tensors have the batch first."""
    if isinstance(result, torch.Tensor):
        return list(result.split(list(sizes)))
    if isinstance(result, tuple | list):
        parts = [split(item, sizes) for item in result]
        made = type(result) if type(result) in (tuple, list) else tuple
        return (
            [made(values) for values in zip(*parts, strict=True)]
            if parts
            else [result] * len(sizes)
        )
    if isinstance(result, Mapping):  # a ModelOutput of Diffusers, too
        names = list(result)
        parts = [split(result[name], sizes) for name in names]
        rows = zip(*parts, strict=True)
        return [type(result)(**dict(zip(names, values, strict=True))) for values in rows]
    return [result] * len(sizes)


def _doubled(once: Any, twice: Any) -> int | None:
    if isinstance(once, torch.Tensor) and isinstance(twice, torch.Tensor):
        if once.dim() != twice.dim():
            return None
        sizes = zip(once.shape, twice.shape, strict=True)
        return next((axis for axis, (a, b) in enumerate(sizes) if a != b and b == 2 * a), None)
    if isinstance(once, list) and isinstance(twice, list) and len(twice) == 2 * len(once) > 0:
        return 0
    return None


def _length(value: Any, axis: int) -> int | None:
    if isinstance(value, torch.Tensor):
        return int(value.shape[axis])
    return len(value) if isinstance(value, list) else None


def _form(value: Any, axis: int | None) -> Any:
    if isinstance(value, torch.Tensor):
        shape = [*value.shape]
        if axis is not None:
            shape[axis] = -1
        return tuple(shape), value.dtype, value.device
    if axis is not None:
        return type(value)
    return type(value) if isinstance(value, list | dict) else repr(value)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one is other or torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
