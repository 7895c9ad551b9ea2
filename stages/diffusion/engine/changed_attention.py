"""Notices pipelines that give their denoiser another attention for the time of a call.

Those of perturbed attention guidance do, and take it back at the end: for other requests as well.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def attention_kept(denoisers: Mapping[str, torch.nn.Module]) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether all calls of denoisers inside had their attention."""
    changed: list[str] = []
    before = {name: _processors(module) for name, module in denoisers.items()}
    with ExitStack() as hooks:
        for name, module in denoisers.items():

            def compare(module: torch.nn.Module, args: object, name: str = name) -> None:
                if _processors(module) != before[name]:
                    changed.append(name)

            hooks.callback(module.register_forward_pre_hook(compare).remove)
        yield lambda: not changed


def _processors(module: torch.nn.Module) -> dict[str, int]:
    """Return the attention processors of a module, by the names of what has them."""
    parts = module.named_modules()
    return {name: id(vars(one)["processor"]) for name, one in parts if "processor" in vars(one)}
