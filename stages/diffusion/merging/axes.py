"""Finds the batch axes of a denoiser's arguments, and a call's place among others by them.

It is not written down for any model: it is learned from two calls, one with twice as many pictures
as the other.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from omnistage.stages.diffusion.merging.calls import is_same
from omnistage.stages.diffusion.merging.containers import is_object, leaves, outline, rebuilt
from omnistage.stages.diffusion.merging.text_padding import TextPadding
from omnistage.stages.diffusion.pipeline import Arguments

InnerAxes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """For each argument that grows with the batch, its axis; of a list it is 0.

    `probe`: an argument whose size along its axis is the batch. `shared`: arguments that had a
    tensor or were a list, and did not grow. `spread`: numbers that may be given one a row.
    `has_row_lists`: lists of the results have an item a row. `inner`: arguments that hold tensors
    which grow, such as a ControlNet's list of residuals, with the axis of each tensor (None: it
    does not grow). `objects`: the outlines of arguments that are objects; another one runs alone.
    """

    by_name: Mapping[str, int]
    probe: str
    shared: frozenset[str] = frozenset()
    spread: frozenset[str] = frozenset()
    paddings: tuple[TextPadding, ...] = ()
    has_row_lists: bool = False
    inner: Mapping[str, InnerAxes] = field(default_factory=dict)
    objects: Mapping[str, Hashable] = field(default_factory=dict)

    @classmethod
    def learn(cls, once: Arguments, twice: Arguments) -> "Axes":
        """From two calls of one denoiser. Raises ValueError if nothing doubles."""
        axes: dict[str, int] = {}
        for name, value in once.items():
            axis = _doubled(value, twice.get(name))
            if axis is not None:
                axes[name] = axis
        probes = sorted(axes, key=lambda name: not isinstance(once[name], torch.Tensor))
        if not probes:
            raise ValueError("no argument of the denoiser grows with the number of pictures")
        inner = {}
        for name, value in once.items():
            found = None if name in axes else _inner_axes(value, twice.get(name))
            if found is not None:
                inner[name] = found
        shared = {name for name, value in once.items() if _has_rows(value)} - axes.keys()
        objects = {name: outline(value) for name, value in once.items() if is_object(value)}
        return cls(axes, probes[0], frozenset(shared - inner.keys()), inner=inner, objects=objects)

    def with_spread(self, names: Sequence[str]) -> "Axes":
        """With numbers that may differ from row to row."""
        axes = {**self.by_name, **dict.fromkeys(names, 0)}
        return replace(self, by_name=axes, spread=frozenset(names))

    def with_padding(self, padding: TextPadding) -> "Axes":
        """With texts that may be padded to the longest one's length."""
        axes = {**self.by_name, padding.mask: 0}
        return replace(self, by_name=axes, paddings=(*self.paddings, padding))

    def size(self, arguments: Arguments) -> int:
        """The batch of one call."""
        return _length(arguments[self.probe], self.by_name[self.probe]) or 0

    def spread_out(self, arguments: Arguments) -> dict[str, object]:
        """The same call with one of each spread number a row."""
        size = self.size(arguments)
        made = dict(arguments)
        for name in self.spread & arguments.keys():
            value = arguments[name]
            if isinstance(value, torch.Tensor) and value.dim() == 0:
                made[name] = value.expand(size)
        return made

    def fits(self, arguments: Arguments) -> bool:
        """Returns whether its rows can be told from another call's.

        All that has a batch axis has the same batch, and nothing is a tensor that was none when the
        axes were learned.
        """
        if self.probe not in arguments:
            return False
        size = self.size(arguments)
        if not all(padding.fits(arguments) for padding in self.paddings):
            return False
        return all(self._fits(name, value, size) for name, value in arguments.items())

    def _fits(self, name: str, value: object, size: int) -> bool:
        if is_object(value) and self.objects.get(name) != outline(value):
            return False
        if name in self.inner:
            tensors = list(leaves(value))
            return len(tensors) == len(self.inner[name]) and all(
                axis is None or _length(tensor, axis) == size
                for tensor, axis in zip(tensors, self.inner[name], strict=True)
            )
        if name in self.by_name:
            return _length(value, self.by_name[name]) in (None, size)
        return name in self.shared or not _has_rows(value)

    def key(self, arguments: Arguments) -> Hashable:
        """Equal for calls that may be one: same arguments, types and shapes but for the batch."""
        lengths = {name for padding in self.paddings for name in padding.texts}
        masks = {padding.mask for padding in self.paddings}
        return tuple(
            (name, form(value, self.by_name.get(name), 1 if name in lengths else None))
            if name not in self.inner
            else (name, outline(value), tuple(map(form, leaves(value), self.inner[name])))
            for name, value in sorted(arguments.items())
            if name not in masks
        )

    def may_join(self, one: Arguments, other: Arguments) -> bool:
        """Returns whether two calls of equal keys agree in all that has no batch axis."""
        return all(
            name in self.by_name or is_same(value, other[name])
            for name, value in one.items()
            if name not in self.inner
        ) and all(
            axis is not None or is_same(mine, its)
            for name in self.inner.keys() & one.keys()
            for mine, its, axis in zip(
                leaves(one[name]), leaves(other[name]), self.inner[name], strict=True
            )
        )

    def merge(self, calls: Sequence[Arguments]) -> dict[str, object]:
        """One call for all of them; they have the same key."""
        if len(calls) == 1:
            return dict(calls[0])
        for padding in self.paddings:
            calls = padding.level(calls)
        merged = dict(calls[0])
        for name, axis in self.by_name.items():
            values = [call[name] for call in calls if name in call]
            if not values or values[0] is None:
                continue
            if isinstance(values[0], torch.Tensor):
                merged[name] = torch.cat(values, dim=axis)
            else:
                merged[name] = [item for value in values for item in value]
        for name in self.inner.keys() & merged.keys():
            columns = zip(*(leaves(call[name]) for call in calls), strict=True)
            tensors = (
                column[0] if axis is None else torch.cat(column, dim=axis)
                for column, axis in zip(columns, self.inner[name], strict=True)
            )
            merged[name] = rebuilt(merged[name], tensors)
        return merged

    def take_apart(self, arguments: Arguments, num_parts: int) -> list[Arguments]:
        """A call as calls of fewer rows each."""
        size = self.size(arguments)
        bounds = [size * part // num_parts for part in range(num_parts + 1)]
        return [
            {name: self._rows(name, value, start, stop) for name, value in arguments.items()}
            for start, stop in pairwise(bounds)
        ]

    def _rows(self, name: str, value: object, start: int, stop: int) -> object:
        if name not in self.inner:
            return _some_rows(value, self.by_name.get(name), start, stop)
        parts = zip(leaves(value), self.inner[name], strict=True)
        return rebuilt(value, (_some_rows(one, axis, start, stop) for one, axis in parts))


def _some_rows(value: Any, axis: int | None, start: int, stop: int) -> Any:
    if axis is None or _length(value, axis) is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.narrow(axis, start, stop - start)
    return value[start:stop]


def form(value: object, *free_axes: int | None) -> Hashable:
    """Returns what two values have in common if one may be put beside the other along
    `free_axes`.
    """
    if isinstance(value, torch.Tensor):
        shape = tuple(-1 if axis in free_axes else size for axis, size in enumerate(value.shape))
        return shape, value.dtype, value.device
    if isinstance(value, list) and free_axes[0] is not None:
        return list, frozenset(form(item, None) for item in value)
    if _has_rows(value) or isinstance(value, Mapping):
        return type(value).__name__
    return outline(value)


def _has_rows(value: object) -> bool:
    if is_object(value):
        return any(True for _ in leaves(value))
    return isinstance(value, torch.Tensor | list | tuple)


def _inner_axes(once: object, twice: object) -> InnerAxes | None:
    """Return the axis along which each tensor in an argument doubled; None if none did."""
    if isinstance(once, torch.Tensor) or outline(once) != outline(twice):
        return None
    pairs = list(zip(leaves(once), leaves(twice), strict=True))
    axes = tuple(_doubled(one, other) for one, other in pairs)
    is_grown = all(
        axis is not None or one.shape == other.shape
        for (one, other), axis in zip(pairs, axes, strict=True)
    )
    return axes if is_grown and any(axis is not None for axis in axes) else None


def _doubled(once: object, twice: object) -> int | None:
    if isinstance(once, torch.Tensor) and isinstance(twice, torch.Tensor):
        if once.dim() != twice.dim():
            return None
        sizes = zip(once.shape, twice.shape, strict=True)
        return next((axis for axis, (a, b) in enumerate(sizes) if a != b and b == 2 * a), None)
    if isinstance(once, list) and isinstance(twice, list) and len(twice) == 2 * len(once) > 0:
        return 0
    return None


def _length(value: object, axis: int) -> int | None:
    if isinstance(value, torch.Tensor):
        return int(value.shape[axis]) if value.dim() > axis else None
    return len(value) if isinstance(value, list) else None
