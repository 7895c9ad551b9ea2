"""Ends a call of a pipeline's parts between two of its modules, once nobody waits for it.

Hooks before the modules look whether all the requests that a thread computes for are cancelled.
They never ask the device, so on CUDA they stop what has not been launched yet.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from greenlet import GreenletExit

from omnistage.stages.diffusion.blocks.compiled import is_compiled


class Cancelled(GreenletExit):
    """Ends a request's pipeline call where it waits."""


class Stopped(Exception):
    """Ends what a thread computes.

    Other than GreenletExit it is an Exception: torch calls the hooks that must always be called
    (those that move blocks) only after these.
    """


@dataclass(eq=False, slots=True)
class Cancellation:
    """The cancel of a request; its calls share it, any thread may set it."""

    is_set: bool = False


_computing = threading.local()  # `stops`: of the requests that this thread computes for


@contextmanager
def stoppable(stops: Sequence[Cancellation]) -> Iterator[None]:
    """Inside, checkpoints of this thread raise Stopped once all of these are set."""
    before = getattr(_computing, "stops", ())
    _computing.stops = stops
    try:
        yield
    finally:
        _computing.stops = before


def end_if_stopped() -> None:
    """Raise Stopped if all the requests that this thread computes for are cancelled."""
    stops = getattr(_computing, "stops", ())
    if stops and all(stop.is_set for stop in stops):
        raise Stopped


class Checkpoints:
    """A look before each module of some parts of a pipeline, until it is closed."""

    def __init__(self, parts: Iterable[torch.nn.Module], device: torch.device) -> None:
        """Compiled modules have none: their code cannot be left in the middle.

        CUDA's host runs ahead of it, so modules without parts of their own have none there.
        """
        has_leaves = device.type == "cpu"
        self.num_passed = 0  # by all threads: it says that they get on, no more
        self._hooks = [
            module.register_forward_pre_hook(self._check)
            for module in {id(one): one for part in parts for one in modules_below(part)}.values()
            if has_leaves or next(module.children(), None) is not None
        ]

    def _check(self, module: torch.nn.Module, args: object) -> None:
        self.num_passed += 1
        end_if_stopped()

    def close(self) -> None:
        """Look no more."""
        for hook in self._hooks:
            hook.remove()


def modules_below(part: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Returns what a part is made of, without what is compiled."""
    for child in part.children():
        if not is_compiled(child):
            yield child
            yield from modules_below(child)
