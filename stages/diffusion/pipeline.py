"""A pipeline as this stage sees it: Diffusers has no types, and users bring their own classes."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

Arguments = Mapping[str, Any]  # of a call, by their names


class HasCall(Protocol):
    """A pipeline of which the call alone matters; each class has a signature of its own.

    A call returns an object of images or sounds, in a form of its own.
    """

    def __call__(self, *args: Any, **arguments: Any) -> Any: ...


PipelineCall = HasCall | type  # a pipeline, or its class


class HasComponents(Protocol):
    """A pipeline of which the parts alone matter.

    `components`: modules, tokenizers and schedulers by the names of the pipeline's attributes; None
    for one that it was loaded without.
    """

    @property
    def components(self) -> Mapping[str, object]: ...


class Pipeline(HasCall, HasComponents, Protocol):
    """A pipeline; beside these it has its components, and what its class adds, as attributes.

    `config`: the other arguments that it was made with.
    """

    @property
    def config(self) -> Mapping[str, object]: ...

    def __getattr__(self, name: str) -> Any: ...

    def to(self, device: torch.device) -> object: ...
