"""Arguments of a diffusion stage's engine, by the part that takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """A part's own; its fields are the arguments, its `__post_init__` checks them."""

    @classmethod
    def names(cls) -> frozenset[str]:
        """The engine arguments."""
        return frozenset(one.name for one in fields(cls))

    @classmethod
    def of(cls, engine: Mapping[str, object]) -> Self:
        """Returns the arguments that are given, and not as null; raises ValueError."""
        names = cls.names() & engine.keys()
        return cls(**{name: engine[name] for name in names if engine[name] is not None})
