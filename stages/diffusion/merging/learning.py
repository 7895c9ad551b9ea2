"""Learns from two short calls of a pipeline how calls of its denoisers may be merged.

Whatever is assumed is tried, on these calls; what changes the result is not done.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch
from PIL.Image import Image

from omnistage.stages.device.memory import is_out_of_memory
from omnistage.stages.diffusion.merging.axes import Axes
from omnistage.stages.diffusion.merging.calls import (
    bind,
    has_row_lists,
    is_close,
    is_same,
    nested,
    split,
)
from omnistage.stages.diffusion.merging.containers import is_object, leaves, rebuilt
from omnistage.stages.diffusion.merging.text_padding import TextPadding, candidates
from omnistage.stages.diffusion.pipeline import Arguments, PipelineCall
from omnistage.stages.diffusion.profiles.profile import profile_of

logger = logging.getLogger(__name__)

# Several lengths, one after another: where ranks share the positions, Diffusers 0.42 puts a mask
# together wrongly for those that more than two ranks cannot share alike, which are among any three.
EXTRA_TOKENS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One call of a denoiser and its result; `changed`: objects that it wrote to.

    `later`: lists of calls after it, by the names of arguments that were no list in it.
    """

    arguments: Arguments
    result: object
    changed: frozenset[str] = frozenset()
    later: Mapping[str, list[object]] = field(default_factory=dict)


@torch.inference_mode()
def first_calls(
    pipeline: PipelineCall, modules: Mapping[str, torch.nn.Module], arguments: Arguments
) -> dict[str, SeenCall]:
    """The first call of each module in a whole call of the pipeline."""
    seen: dict[str, SeenCall] = {}
    with _noted(modules, seen):
        pipeline(**arguments)
    return seen


@contextmanager
def _noted(modules: Mapping[str, torch.nn.Module], seen: dict[str, SeenCall]) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, module in modules.items():
            notes = _Notes(name, inspect.signature(module.forward), seen)
            for hook in (
                module.register_forward_pre_hook(notes.before, with_kwargs=True),
                module.register_forward_hook(notes.after, with_kwargs=True),
            ):
                hooks.callback(hook.remove)
        yield


class _Notes:
    """Notes the first call of a module, as it was before the module changed its arguments."""

    def __init__(self, name: str, signature: inspect.Signature, seen: dict[str, SeenCall]) -> None:
        self._name = name
        self._signature = signature
        self._seen = seen
        self._arguments: Arguments | None = None
        self._later: dict[str, list[object]] = {}

    def before(self, module: torch.nn.Module, args: Sequence[object], kwargs: Arguments) -> None:
        """Note the arguments; of later calls the lists."""
        given = bind(self._signature, args, kwargs)
        if self._arguments is None:
            self._arguments = copy.deepcopy(given)
        for name, value in given.items():
            if isinstance(value, list) and not isinstance(self._arguments.get(name), list):
                self._later.setdefault(name, copy.deepcopy(value))

    def after(
        self, module: torch.nn.Module, args: Sequence[object], kwargs: Arguments, result: object
    ) -> None:
        """Note the result, and which objects were changed."""
        if self._name in self._seen or self._arguments is None:
            return
        given = bind(self._signature, args, kwargs)
        changed = (
            name
            for name, value in self._arguments.items()
            if is_object(value) and not is_same(value, given[name])
        )
        result = copy.deepcopy(result)
        self._seen[self._name] = SeenCall(self._arguments, result, frozenset(changed), self._later)


def calls_of_two(
    pipeline: PipelineCall,
    modules: Mapping[str, torch.nn.Module],
    once: Arguments,
    twice: Arguments,
    seen: Mapping[str, SeenCall],
) -> dict[str, SeenCall]:
    """Return the first calls of modules in a call of twice as many pictures, {} without one.

    `seen`: those of the call with `once`. Some pipelines make one of each prompt, whatever number
    is wanted: then of two prompts, and at last of two pictures as well. Some fail once the denoiser
    is done, as a decoder does that takes one video: what it was called with is seen.
    """
    prompts = {"prompt": [once["prompt"]] * 2} if isinstance(once.get("prompt"), str) else {}
    images = {name: [one] * 2 for name, one in once.items() if isinstance(one, Image)}
    for arguments in (twice, {**once, **prompts}, {**once, **prompts, **images}):
        made: dict[str, SeenCall] = {}
        try:
            with _noted(modules, made):
                pipeline(**arguments)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            logger.warning("a call for two pictures failed: %s", error)
        if any(_grows(seen[name], made[name]) for name in seen.keys() & made.keys()):
            return made
    return {}


def _grows(once: SeenCall, twice: SeenCall) -> bool:
    try:
        Axes.learn(once.arguments, twice.arguments)
    except ValueError:
        return False
    return True


@torch.inference_mode()
def learn(module: torch.nn.Module, once: SeenCall, twice: SeenCall) -> Axes | None:
    """How calls of a denoiser may be merged; None: not at all."""
    if once.changed | twice.changed:
        names = ", ".join(sorted(once.changed | twice.changed))
        logger.warning("%s writes to its argument %s: runs alone", type(module).__name__, names)
        return None
    row_lists = has_row_lists(once.result, twice.result)
    axes = replace(Axes.learn(once.arguments, twice.arguments), has_row_lists=row_lists)
    # A list of further calls that is the same for two pictures is no list of rows.
    same = {
        name
        for name, value in once.later.items()
        if name in twice.later and is_same(value, twice.later[name])
    }
    axes = replace(axes, shared=axes.shared | (same - axes.by_name.keys()))
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
        is_apart = is_same(rows[0], _merged(forward, axes, others)[0])
        return is_apart and _may_turn(forward, axes, calls[1])
    except Exception:
        logger.warning("two merged calls failed", exc_info=True)
        return False


def _merged(forward: Callable[..., object], axes: Axes, calls: Sequence[Arguments]) -> list[object]:
    sizes = [axes.size(call) for call in calls]
    return split(forward(**nested(axes.merge(calls))), sizes, axes.has_row_lists)


def _may_turn(forward: Callable[..., object], axes: Axes, call: Arguments) -> bool:
    """Returns whether a row's result is the same at another place of a batch of the same size.

    It is not where parts of a batch have a meaning of their own, as with perturbed attention.
    """
    rows = axes.take_apart(call, axes.size(call))
    turned = _merged(forward, axes, rows[::-1])[::-1]
    return all(map(is_close, _merged(forward, axes, rows), turned))


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
        return is_close(result, forward(**nested(rebuilt(arguments, leaves(arguments)))))
    except Exception:  # noqa: BLE001 - a model may refuse what was only tried
        return False
