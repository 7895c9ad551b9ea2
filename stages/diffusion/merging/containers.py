"""Arguments that hold tensors: lists, dicts and objects, taken apart and put together again."""

import copy
from collections.abc import Hashable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn import Module

PLAIN = (bool, int, float, str, type(None), torch.dtype)  # what has no parts
ATOMS = (*PLAIN, bytes, complex, Enum, torch.device, torch.Size, slice)


def is_object(value: object) -> bool:
    """Returns whether a value is an object with attributes, and no module, function or class."""
    containers = (torch.Tensor, Module, Mapping, list, tuple, type, *ATOMS)
    return not isinstance(value, containers) and not callable(value) and hasattr(value, "__dict__")


def leaves(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, in the same order for all values of one outline."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for _, part in _parts(value):
            yield from leaves(part)


def outline(value: object) -> Hashable:
    """Return all that a value is without its tensors: types, names, numbers and texts.

    Functions, modules and other things without parts are what they are: equal only to themselves.
    """
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, ATOMS):
        return type(value), repr(value)
    if isinstance(value, np.ndarray):
        return np.ndarray, value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, Mapping | list | tuple) or is_object(value):
        return type(value), tuple((name, outline(part)) for name, part in _parts(value))
    return type(value), id(value)


def rebuilt(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return a copy of a value with other tensors, in the order of `leaves`."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    made = [(name, rebuilt(part, tensors)) for name, part in _parts(value)]
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for name, part in made:
            copied[name] = part
        return copied
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(part for _, part in made))
    if isinstance(value, list | tuple):
        return type(value)(part for _, part in made)
    if is_object(value):
        copied = copy.copy(value)
        vars(copied).update(made)
        return copied
    return value


def _parts(value: object) -> list[tuple[Any, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    return sorted(vars(value).items()) if is_object(value) else []
