"""The step schema of a family: columns, rows and the exported tensor of its engine's tokens.

The bridge has columns of its own (`step.py`). A family's follow them as 32-bit words of the same
int32 array, whatever their dtypes are, so that a step's columns reach the device in one copy.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.vllm.step.step import NUM_OWN, Ints

# Of a step that was fed the end of speech: with async scheduling it runs before the end is known.
NO_FRAME = -1
NO_FLOAT_FRAME = float("-inf")

Dtype = Literal["int32", "int64", "float32"]
Values = npt.NDArray[Any]


class Column(msgspec.Struct, frozen=True):
    """One input of every token, `width` values of `dtype`; a request gives those of its prompt.

    Behind the prompt they are `blank`. If the column is `fed_by` a tensor of the edge's `Tokens`,
    they come with it, one line a position. If it `counts`, they are the token's position: its index
    and the request's `position_delta`. If it is `after_rows`, they are blank as long as rows come,
    and behind the last of them the request's `ends`.
    """

    name: str
    dtype: Dtype = "int32"
    width: int = 1
    blank: float = -1
    fed_by: str = ""
    counts: bool = False
    after_rows: bool = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"column {self.name!r} has width {self.width}; at least 1")
        if bool(self.fed_by) + self.counts + self.after_rows > 1:
            raise ValueError(f"column {self.name!r} is either fed or counts or is after rows")


class RowInput(msgspec.Struct, frozen=True):
    """Rows in the place of embeddings: lines [`width`] of tensor `name` of the edge's `Rows`.

    `dtype`: as torch names it; empty: that of the engine.
    """

    width: int
    name: str = "hidden"
    dtype: str = ""


class Export(msgspec.Struct, frozen=True):
    """The tensor that leaves the engine: a line for each codec frame, or for each row wanted.

    A "frame" is what one decode step computes of a request; one whose first value is `NO_FRAME`, or
    `NO_FLOAT_FRAME`, does not leave. "row": one line for each token whose request asks for it.
    `dtype`: as torch names it; empty: that of the engine.
    """

    name: str
    each: Literal["frame", "row"]
    dtype: str = ""


class StepSchema(msgspec.Struct, frozen=True):
    """A family's declaration of what passes between the bridge and its model's forward."""

    columns: tuple[Column, ...] = ()
    rows: RowInput | None = None
    export: Export | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"two columns have one name: {', '.join(names)}")

    @property
    def is_repeatable(self) -> bool:
        """Returns whether a request's tokens may be computed twice, as after a preemption.

        Rows that came are kept until they are computed, and a frame depends on the one before it,
        which no step gets a second time.
        """
        has_frames = self.export is not None and self.export.each == "frame"
        return self.rows is None and not has_frames


HIDDEN_STATES = StepSchema(export=Export("hidden", "row"))


def are_frames(values: torch.Tensor) -> torch.Tensor:
    """Returns which lines of [n, …] are frames: bool [n]."""
    none = NO_FLOAT_FRAME if values.is_floating_point() else NO_FRAME
    return values.flatten(1)[:, 0] != none


def torch_dtype(name: str, engine: torch.dtype) -> torch.dtype:
    """A dtype by its name; the engine's, if it has none."""
    found = getattr(torch, name) if name else engine
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


class ColumnLayout:
    """Where a family's columns are in a line of the step table, in words of 32 bits."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._by_name: dict[str, tuple[slice, Dtype]] = {}  # in whole lines
        self._in_inputs: dict[str, slice] = {}
        end, widest = NUM_OWN, 1
        for column in self.columns:
            size = np.dtype(column.dtype).itemsize // 4
            start = -(-end // size) * size  # torch reads 64 bits at even places only
            end, widest = start + size * column.width, max(size, widest)
            self._by_name[column.name] = slice(start, end), column.dtype
            self._in_inputs[column.name] = slice(start - NUM_OWN, end - NUM_OWN)
        self.num_words = -(-end // widest) * widest
        self.num_inputs = self.num_words - NUM_OWN

    @cached_property
    def fed(self) -> tuple[Column, ...]:
        """The columns whose values come along the edge."""
        return tuple(column for column in self.columns if column.fed_by)

    @cached_property
    def after_rows(self) -> tuple[Column, ...]:
        """The columns that take the ends of rows."""
        return tuple(column for column in self.columns if column.after_rows)

    def of_lines(self, lines: torch.Tensor, name: str) -> torch.Tensor:
        """A column [n, width] of whole lines int32 [n, num_words]; a view."""
        place, dtype = self._by_name[name]
        words = lines[:, place]
        return words if dtype == "int32" else words.view(getattr(torch, dtype))

    def of_inputs(self, inputs: Ints, name: str) -> Values:
        """A column [n, width] of a family's part of lines, int32 [n, num_inputs]; a view."""
        words, (_, dtype) = inputs[:, self._in_inputs[name]], self._by_name[name]
        return words if dtype == "int32" else words.view(dtype)

    def pack(self, num_lines: int, values: Mapping[str, npt.ArrayLike]) -> Ints:
        """A family's part of lines: of each column [n] or [n, width]; blank where it has no value.

        Raises ValueError for values of no column, or of another shape.
        """
        unknown = sorted(values.keys() - self._by_name.keys())
        if unknown:
            raise ValueError(f"there is no column {unknown[0]!r}")
        inputs = np.zeros((num_lines, self.num_inputs), np.int32)
        for column in self.columns:
            given = np.asarray(values.get(column.name, column.blank))
            self.of_inputs(inputs, column.name)[:] = given[:, None] if given.ndim == 1 else given
        return inputs
