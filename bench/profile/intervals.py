"""Intervals of time: which of a window are covered, by one stage or by several at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]  # microseconds


class Intervals(NamedTuple):
    """Starts and ends, microseconds."""

    starts: Times
    ends: Times

    @property
    def total(self) -> float:
        """Returns their length together, where they do not overlap; microseconds."""
        return float((self.ends - self.starts).sum())


class TimeWindow(NamedTuple):
    """Says from when to when, microseconds."""

    begin: float
    end: float

    @property
    def length(self) -> float:
        """Returns it in microseconds."""
        return self.end - self.begin

    def has(self, times: Times) -> npt.NDArray[np.bool_]:
        """Returns which of these are in it."""
        return (times >= self.begin) & (times < self.end)

    def clipped(self, starts: Times, ends: Times) -> Intervals:
        """Returns what of each is in it; those of which nothing is are left out."""
        starts, ends = np.clip(starts, *self), np.clip(ends, *self)
        some = ends > starts
        return Intervals(starts[some], ends[some])


def union(runs: Intervals) -> Intervals:
    """Returns when at least one runs: intervals in their order that do not touch."""
    if not len(runs.starts):
        return runs
    order = np.argsort(runs.starts, kind="stable")
    starts, ends = runs.starts[order], np.maximum.accumulate(runs.ends[order])
    begins = np.concatenate([[True], starts[1:] > ends[:-1]])
    lasts = np.concatenate([begins[1:], [True]])
    return Intervals(starts[begins], ends[lasts])


def shares(busy: Sequence[Intervals], window: TimeWindow) -> dict[tuple[int, ...], float]:
    """The share of the window for each set of stages (their numbers) that compute together."""
    times = [np.array([window.begin])]
    changes = [np.array([0])]
    for number, own in enumerate(busy):
        bit = np.full(len(own.starts), 1 << number)
        times += [own.starts, own.ends]
        changes += [bit, -bit]
    moments, bits = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(moments, kind="stable")
    sets = np.cumsum(bits[order])
    lengths = np.diff(np.append(moments[order], window.end))
    found: dict[tuple[int, ...], float] = {}
    for value in np.unique(sets).tolist():
        members = tuple(number for number in range(len(busy)) if value >> number & 1)
        length = float(lengths[sets == value].sum())
        if length > 0:
            found[members] = length / window.length
    return found
