"""Methods of a pipeline's parts that requests call through the engine, and how calls are merged."""

import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from omnistage.stages.device.memory import is_out_of_memory, release_cached
from omnistage.stages.diffusion.merging.axes import Axes, form
from omnistage.stages.diffusion.merging.calls import (
    Call,
    bind,
    has_row_lists,
    is_close,
    joined_rows,
    nested,
    split,
)
from omnistage.stages.diffusion.merging.containers import PLAIN
from omnistage.stages.diffusion.merging.stopping import Cancelled, Stopped, stoppable
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.pipeline import Arguments

logger = logging.getLogger(__name__)


class Beside(Protocol):
    """Where calls of one denoiser, given as arguments, are computed at the same time."""

    @property
    def num_groups(self) -> int:
        """How many at once."""

    def run(
        self, name: str, calls: Sequence[tuple[tuple[object, ...], Mapping[str, object]]]
    ) -> list[object]:
        """The results, in the same order."""


class Denoiser:
    """A module that is called at each step; merged along axes that were learned."""

    def __init__(
        self,
        name: str,
        forward: Callable[..., object],
        axes: Axes | None,
        beside: Beside | None = None,
    ) -> None:
        """`beside`: ranks among which rows are divided."""
        self.name = name
        self._forward = forward
        self._signature = inspect.signature(forward)
        self._axes = axes
        self._beside = beside if beside is not None and beside.num_groups > 1 else None

    @property
    def may_merge(self) -> bool:
        """Returns whether calls of it may be one."""
        return self._axes is not None

    def call(self, args: Sequence[object], kwargs: Arguments) -> Call:
        """With its place among others."""
        arguments, modes = bind(self._signature, args, kwargs), TorchModes.now()
        axes = self._axes
        if axes is None or not axes.fits(arguments):
            return Call(self, arguments, modes)
        arguments = axes.spread_out(arguments)
        return Call(self, arguments, modes, axes.size(arguments), axes.key(arguments))

    def may_join(self, one: Call, other: Call) -> bool:
        """Returns whether two of the same key agree in what all rows share."""
        return self._axes is not None and self._axes.may_join(one.arguments, other.arguments)

    def run(self, calls: Sequence[Call]) -> list[object]:
        """One forward for all, or one a group of ranks, at the same time."""
        if self._beside is not None:
            return self._run_beside(self._beside, calls)
        if len(calls) == 1:
            return [self._forward(**nested(calls[0].arguments))]
        return self._split(self._forward(**nested(self._merged(calls))), calls)

    def _split(self, result: object, calls: Sequence[Call]) -> list[object]:
        has_row_lists = self._axes is not None and self._axes.has_row_lists
        return split(result, [call.size for call in calls], has_row_lists)

    def _merged(self, calls: Sequence[Call]) -> Arguments:
        if len(calls) == 1:
            return calls[0].arguments
        assert self._axes is not None, "calls without axes were merged"
        return self._axes.merge([call.arguments for call in calls])

    def _run_beside(self, beside: Beside, calls: Sequence[Call]) -> list[object]:
        if len(calls) == 1:
            rows = self._rows(calls[0], beside.num_groups)
            results = beside.run(self.name, [((), nested(one)) for one in rows])
            has_row_lists = self._axes is not None and self._axes.has_row_lists
            return [joined_rows(results, has_row_lists)]
        parts = divided(calls, beside.num_groups)
        merged = [((), nested(self._merged(part))) for part in parts]
        results = beside.run(self.name, merged)
        return [
            row
            for part, result in zip(parts, results, strict=True)
            for row in (self._split(result, part) if part[1:] else [result])
        ]

    def _rows(self, call: Call, num_parts: int) -> list[Arguments]:
        """A call of several rows as calls of fewer."""
        if self._axes is None or call.key is None or call.size < num_parts:
            return [call.arguments]
        return self._axes.take_apart(call.arguments, num_parts)


def divided(calls: Sequence[Call], num_parts: int) -> list[list[Call]]:
    """In so many parts, or fewer, of about the same number of rows each."""
    total = sum(call.size for call in calls)
    parts: list[list[Call]] = [[] for _ in range(num_parts)]
    done = 0
    for call in calls:
        middle = done + call.size / 2
        parts[min(int(middle * num_parts / total), num_parts - 1)].append(call)
        done += call.size
    return [part for part in parts if part]


class Component:
    """A method of an encoder or decoder. The first calls that could be one are made both ways.

    Only if the results are equal, further ones like them are merged, all tensors along axis 0.
    `decodes`: of a module that decodes, whatever the method does, or of what comes after one.
    """

    def __init__(
        self, name: str, method: Callable[..., object], may_merge: bool, decodes: bool = False
    ) -> None:
        self.name = name
        self.decodes = decodes
        self._method = method
        self._signature = inspect.signature(method)
        self._may_merge = may_merge
        # By what the calls are like, but for shapes.
        self._is_safe: dict[Hashable, bool] = {}
        self._has_row_lists: dict[Hashable, bool] = {}

    def call(self, args: Sequence[object], kwargs: Arguments) -> Call:
        """With its place among others."""
        arguments, modes = bind(self._signature, args, kwargs), TorchModes.now()
        tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        sizes = {value.shape[0] if value.dim() else 0 for value in tensors}
        is_plain = all(isinstance(value, (torch.Tensor, *PLAIN)) for value in arguments.values())
        if not (self._may_merge and is_plain and len(sizes) == 1 and 0 not in sizes):
            return Call(self, arguments, modes)
        key = tuple((name, form(value, 0)) for name, value in sorted(arguments.items()))
        return Call(self, arguments, modes, sizes.pop(), key)

    def may_join(self, one: Call, other: Call) -> bool:
        """Returns whether merging such calls changes nothing, as far as it was tried."""
        return self._is_safe.get(_kind(one), True)

    def run(self, calls: Sequence[Call]) -> list[object]:
        """One call of the method for all, or one each while that is not known to be the same."""
        if len(calls) == 1:
            return [self._alone(calls[0])]
        kind = _kind(calls[0])
        if kind in self._is_safe:
            return self._split(self._together(calls), calls)
        singles = [self._alone(call) for call in calls]
        try:
            merged = self._together(calls)
            self._has_row_lists[kind] = has_row_lists(singles[0], merged)
            self._is_safe[kind] = is_close(singles, self._split(merged, calls))
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, they may not be merged
            if is_out_of_memory(error):  # smaller ones may be
                return singles
            self._is_safe[kind] = False
        if not self._is_safe[kind]:
            logger.info("calls of %s cannot be merged", self.name)
        return singles

    def _alone(self, call: Call) -> object:
        return self._method(**nested(call.arguments))

    def _split(self, result: object, calls: Sequence[Call]) -> list[object]:
        sizes = [call.size for call in calls]
        return split(result, sizes, self._has_row_lists.get(_kind(calls[0]), False))

    def _together(self, calls: Sequence[Call]) -> object:
        merged = {
            name: torch.cat([call.arguments[name] for call in calls])
            if isinstance(value, torch.Tensor)
            else value
            for name, value in calls[0].arguments.items()
        }
        return self._method(**nested(merged))


def _kind(call: Call) -> Hashable:
    return tuple(
        (name, value.dtype if isinstance(value, torch.Tensor) else repr(value))
        for name, value in sorted(call.arguments.items())
    )


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call: a result or an error."""

    value: object = None
    error: BaseException | None = None


def outcomes(calls: Sequence[Call], finish: Callable[[], None] = lambda: None) -> list[CallOutcome]:
    """Computes calls that may be one; if it fails for several, each is tried alone.

    Once all of them are cancelled it ends at the next module. What fails for want of memory is a
    torch.OutOfMemoryError that holds none. `finish` is called after the work, for the errors that
    a device tells late.
    """
    before = TorchModes.now()
    calls[0].modes.set()
    try:
        calls[0].setting.put(calls[0].target.name)
        with stoppable([call.stop for call in calls]):
            results = calls[0].target.run(calls)
        finish()
        return [CallOutcome(value) for value in results]
    except Stopped:  # its traceback would keep what was computed
        return [CallOutcome(error=Cancelled()) for _ in calls]
    except Exception as error:  # noqa: BLE001 - a request's own, if it is alone
        failure = without_frames(error)
    finally:
        before.set()
    if is_out_of_memory(failure):
        release_cached()
    if len(calls) == 1:
        return [CallOutcome(error=failure)]
    name = calls[0].target.name
    logger.warning(
        "%d calls of %s in one failed (%s); each is tried alone", len(calls), name, failure
    )
    del failure  # with its frames
    return [outcomes([call], finish)[0] for call in calls]


def without_frames(error: Exception) -> Exception:
    """Drops an out-of-memory error's traceback, whose frames keep tensors alive."""
    return torch.OutOfMemoryError(str(error)) if is_out_of_memory(error) else error


def joined(waiting: Sequence[Call], max_rows: int) -> list[int]:
    """Returns which calls may be one with the first of them, the first included."""
    first, chosen = waiting[0], [0]
    room = max_rows - first.size
    if first.key is None:
        return chosen
    for index, call in enumerate(waiting[1:], 1):
        if (
            call.size <= room
            and call.key == first.key
            and call.target is first.target
            and call.modes == first.modes
            and call.setting == first.setting
            and first.target.may_join(first, call)
        ):
            chosen.append(index)
            room -= call.size
    return chosen
