"""Checks numbers, texts, booleans and lists of them against the annotation of a parameter."""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

MAX_INTEGER = 4096  # or four times a larger default: a length or a count costs memory
MAX_NUMBER = 1e6
MAX_SEED = (1 << 63) - 1
SCALARS: Mapping[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
}
ANY: Any = bool | int | float | str
UNIONS = (typing.Union, types.UnionType)
LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)


def parameters_of(call: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a call that have a name, their annotations as types if possible."""
    try:
        signature = inspect.signature(call, eval_str=True)
    except Exception:  # noqa: BLE001 - an annotation may name what its module does not import
        signature = inspect.signature(call)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in signature.parameters.items() if one.kind in kinds}


@dataclass(frozen=True, slots=True)
class PlainForm:
    """A type that a parameter's value may have.

    `kind`: one of SCALARS, `Literal` with its values in `parts`, or `list` and `tuple`, whose items
    have one of the forms in `parts`; `length`: of a tuple of a fixed number, else None.
    """

    kind: Any
    parts: tuple[Any, ...] = ()
    length: int | None = None

    @classmethod
    def all_of(cls, parameter: inspect.Parameter) -> tuple[Self, ...]:
        """Return the forms of a parameter's annotation, or else of its default; none: no plain."""
        annotation, default = parameter.annotation, parameter.default
        is_unread = isinstance(annotation, str)
        if is_unread:
            annotation = next((one for one in SCALARS if one.__name__ == annotation), Any)
        if annotation not in (inspect.Parameter.empty, Any):
            return cls._in(annotation)
        if type(default) in SCALARS:
            return cls._in(type(default))
        if is_unread:
            return ()
        return cls._in(ANY | list[ANY])

    @classmethod
    def _in(cls, annotation: object) -> tuple[Self, ...]:
        if annotation in SCALARS:
            return (cls(annotation),)
        origin, given = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in UNIONS:
            return tuple(form for one in given for form in cls._in(one))
        if origin is typing.Literal:
            return (cls(typing.Literal, given),)
        kind = annotation if origin is None else origin
        if kind not in LISTS:
            return ()
        items = [one for one in given if one is not ...] or [ANY | list[ANY]]
        parts = tuple(form for one in items for form in cls._in(one))
        is_fixed = kind is tuple and len(items) > 1
        made = tuple if kind is tuple else list
        return (cls(made, parts, len(items) if is_fixed else None),) if parts else ()

    def takes(self, value: object) -> bool:
        """Returns whether a value has this form."""
        if self.kind is typing.Literal:
            return any(type(value) is type(one) and value == one for one in self.parts)
        if self.kind is float:
            return type(value) in (int, float)
        if self.kind in SCALARS:
            return type(value) is self.kind
        if not isinstance(value, list) or self.length not in (None, len(value)):
            return False
        return all(any(part.takes(item) for part in self.parts) for item in value)

    def __str__(self) -> str:
        """Return its description in an error."""
        if self.kind is typing.Literal:
            return "one of " + ", ".join(map(str, self.parts))
        if self.kind in SCALARS:
            return SCALARS[self.kind]
        items = " or ".join(dict.fromkeys(map(str, self.parts)))
        return f"a list of {self.length}, each {items}" if self.length else f"a list, each {items}"


def checked(value: object, parameter: inspect.Parameter) -> object:
    """Return a value as a parameter takes it: a tuple where its annotation says so.

    Raises ValueError with what is allowed.
    """
    forms = PlainForm.all_of(parameter)
    form = next((one for one in forms if one.takes(value)), None)
    if form is None:
        raise ValueError("must be " + ", or ".join(dict.fromkeys(map(str, forms))))
    _check_bounds(value, parameter)
    return tuple(value) if form.kind is tuple and isinstance(value, list) else value


def _check_bounds(value: object, parameter: inspect.Parameter) -> None:
    if isinstance(value, list):
        for item in value:
            _check_bounds(item, parameter)
    elif isinstance(value, int | float) and type(value) is not bool:
        limit = _limit(parameter, type(value) is int)
        if not -limit <= value <= limit:
            raise ValueError(f"must be between {-limit:.0f} and {limit:.0f}")


def _limit(parameter: inspect.Parameter, is_integer: bool) -> float:
    if "seed" in parameter.name:
        return MAX_SEED
    default: float = parameter.default if type(parameter.default) in (int, float) else 0
    takes_integers = any(_has_integers(form) for form in PlainForm.all_of(parameter))
    least = MAX_INTEGER if is_integer and takes_integers else MAX_NUMBER
    return max(least, 4 * abs(default))


def _has_integers(form: PlainForm) -> bool:
    if form.kind in (list, tuple):
        return any(map(_has_integers, form.parts))
    return form.kind is int


def names_of(parameters: Collection[inspect.Parameter]) -> list[str]:
    """Return the names of parameters that take plain values."""
    return sorted(one.name for one in parameters if PlainForm.all_of(one))
