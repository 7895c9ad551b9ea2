"""Errors about places of a graph, and what is allowed instead."""

import difflib
from collections.abc import Iterable

from pydantic import (
    BaseModel,
    ConfigDict,
)
from pydantic_core import PydanticCustomError

MANY = 40  # names that are not listed


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that says what is allowed, the most similar first."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5 if len(names) <= MANY else 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if len(names) > MANY:
        return f"none of the {len(names)} names that are allowed is like it"
    return f"allowed: {', '.join(names) or 'none'}"


def problem(message: str, *place: str | int) -> PydanticCustomError:
    """An error about one place of a graph, below the field whose validator found it."""
    return PydanticCustomError("graph", "{message}", {"message": message, "place": place})


class FrozenModel(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
