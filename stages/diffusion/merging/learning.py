"""Learns from two short calls of a pipeline how calls of its denoisers may be merged.

Whatever is assumed is tried, on these calls; what changes the result is not done.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnistage.stages.diffusion.merging.axes import Axes
from omnistage.stages.diffusion.merging.calls import (
    Arguments,
    bind,
    has_row_lists,
    is_close,
    is_same,
    nested,
    split,
)
from omnistage.stages.diffusion.merging.text_padding import TextPadding, candidates
from omnistage.stages.diffusion.profiles.profile import profile_of

logger = logging.getLogger(__name__)

# Several lengths, one after another: where ranks share the positions, Diffusers 0.42 puts a mask
# together wrongly for those that more than two ranks cannot share alike, which are among any three.
EXTRA_TOKENS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One call of a denoiser and its result."""

    arguments: Arguments
    result: object


@torch.inference_mode()
def first_calls(
    pipeline: Any, modules: Mapping[str, torch.nn.Module], arguments: Arguments
) -> dict[str, SeenCall]:
    """The first call of each module in a whole call of the pipeline."""
    seen: dict[str, SeenCall] = {}
    with _noted(modules, seen):
        pipeline(**arguments)
    return seen


@contextmanager
def _noted(modules: Mapping[str, torch.nn.Module], seen: dict[str, SeenCall]) -> Iterator[None]:
    hooks = []
    for name, module in modules.items():
        signature = inspect.signature(module.forward)

        def note(
            module: torch.nn.Module,
            args: Any,
            kwargs: Any,
            result: object,
            name: str = name,
            signature: inspect.Signature = signature,
        ) -> None:
            if name not in seen:
                given = copy.deepcopy(bind(signature, args, kwargs))
                seen[name] = SeenCall(given, copy.deepcopy(result))

        hooks.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def learn(module: torch.nn.Module, once: SeenCall, twice: SeenCall) -> Axes | None:
    """How calls of a denoiser may be merged; None: not at all."""
    row_lists = has_row_lists(once.result, twice.result)
    axes = replace(Axes.learn(once.arguments, twice.arguments), has_row_lists=row_lists)
    forward: Callable[..., object] = module.forward
    numbers = [
        name
        for name, value in once.arguments.items()
        if isinstance(value, torch.Tensor) and value.dim() == 0
    ]
    if numbers:
        spread = axes.with_spread(numbers)
        if _is_like(forward, spread.spread_out(twice.arguments), twice.result):
            axes = spread
    parameters, endings = list(inspect.signature(forward).parameters), profile_of(module).text_masks
    for padding in candidates(parameters, once.arguments, endings):
        tries = [(once, extra) for extra in EXTRA_TOKENS]
        if padding.fits(twice.arguments):  # rows with a mask are a code of their own
            tries.append((twice, 1))
        if all(_is_like(forward, _longer(padding, one, n), one.result) for one, n in tries):
            axes = axes.with_padding(padding)
    if _may_merge(forward, axes, once, twice):
        return axes
    logger.warning("%s: merged calls differ from single ones; none are", type(module).__name__)
    return None


def _longer(padding: TextPadding, seen: SeenCall, num_tokens: int) -> Arguments:
    """A call with so many tokens more, which are none."""
    return padding.padded(seen.arguments, padding.length(seen.arguments) + num_tokens)


def _may_merge(forward: Callable[..., object], axes: Axes, once: SeenCall, twice: SeenCall) -> bool:
    calls = [axes.spread_out(seen.arguments) for seen in (once, twice)]
    if not all(map(axes.fits, calls)) or axes.key(calls[0]) != axes.key(calls[1]):
        return False
    if not axes.may_join(*calls):
        return False
    try:
        rows = _merged(forward, axes, calls)
        if all(is_close(seen.result, row) for seen, row in zip((once, twice), rows, strict=True)):
            return True
        others = [calls[0], _with_other_rows(axes, calls[1])]
        return is_same(rows[0], _merged(forward, axes, others)[0])
    except Exception:
        logger.warning("two merged calls failed", exc_info=True)
        return False


def _merged(forward: Callable[..., object], axes: Axes, calls: Sequence[Arguments]) -> list[object]:
    return split(forward(**nested(axes.merge(calls))), [axes.size(call) for call in calls])


def _with_other_rows(axes: Axes, call: Arguments) -> Arguments:
    """A call with other numbers.

    A large model of random weights amplifies the rounding of another batch size beyond any limit.
    But in batches of one size a row comes out bit for bit the same, whatever the others hold.
    """
    return {
        name: value * 2 + 1
        if name in axes.by_name and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in call.items()
    }


def _is_like(forward: Callable[..., object], arguments: Arguments, result: object) -> bool:
    try:
        return is_close(result, forward(**nested(arguments)))
    except Exception:  # noqa: BLE001 - a model may refuse what was only tried
        return False
