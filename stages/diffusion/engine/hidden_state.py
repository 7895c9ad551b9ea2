"""State that stateful hooks of Diffusers (step caches) keep between a request's steps."""

import copy
from collections.abc import Iterable

import torch
from diffusers.hooks.hooks import BaseState, HookRegistry, StateManager


class HiddenState:
    """One request's own state for each hook that the modules have now.

    It must be `put` whenever this request's code or one of its calls runs.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        made: dict[int, object] = {}  # hooks may share a state
        self._states = [
            (hook, name, made.setdefault(id(state), _fresh(state)))
            for module in modules
            for hook in _hooks(module)
            for name, state in vars(hook).items()
            if isinstance(state, StateManager | BaseState)
        ]

    def __bool__(self) -> bool:
        return bool(self._states)

    def put(self) -> None:
        """Let the hooks work on this request's state."""
        for hook, name, state in self._states:
            setattr(hook, name, state)


def _hooks(module: torch.nn.Module) -> Iterable[object]:
    """All: one that is not called stateful may share the state of one that is."""
    for part in module.modules():
        registry = vars(part).get("_diffusers_hook")
        if isinstance(registry, HookRegistry):
            yield from registry.hooks.values()


def _fresh(state: StateManager | BaseState) -> StateManager | BaseState:
    if isinstance(state, StateManager):
        return StateManager(state._state_cls, state._init_args, state._init_kwargs)
    made = copy.copy(state)
    made.reset()
    return made
