"""The sizes that a pipeline makes: its own code says of which number its sides are multiples.

Many of Diffusers' pipelines log a warning and make the next smaller size in place of another; some
raise ValueError. Which number it is they compute alike: `height % X` in their checks, or `height //
X * X` in their calls.
"""

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator
from typing import Any

METHODS = ("check_inputs", "__call__")


def side_multiple(pipeline: object) -> int:
    """Return the number whose multiples are the sides that a pipeline makes; 1 if it names none."""
    found = [value_of(one, function, pipeline) for one, function in _divisors(type(pipeline))]
    return math.lcm(*(one for one in found if type(one) is int and one > 0))


def _divisors(made: type) -> Iterator[tuple[ast.expr, ast.FunctionDef]]:
    """Yield what sides are divided by, each with the method that does it."""
    for method in METHODS:
        function = function_of(getattr(made, method, None))
        if function is None:
            continue
        for node in ast.walk(function):
            match node:
                case ast.BinOp(left=ast.Name(id="height" | "width"), op=ast.Mod(), right=divisor):
                    yield divisor, function
                case ast.BinOp(
                    left=ast.BinOp(
                        left=ast.Name(id="height" | "width"), op=ast.FloorDiv(), right=divisor
                    ),
                    op=ast.Mult(),
                    right=factor,
                ) if ast.dump(divisor) == ast.dump(factor):
                    yield divisor, function


def function_of(method: Any) -> ast.FunctionDef | None:
    """Return the code of a method; None where there is none to read."""
    try:
        (part,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None  # it is not written in Python, or its file is gone
    return part if isinstance(part, ast.FunctionDef) else None


def value_of(node: ast.expr, function: ast.FunctionDef, pipeline: object) -> object:
    """Return what an expression of a pipeline's method is; None for all but simple ones."""

    def value_in(part: ast.expr) -> object:
        return value_of(part, function, pipeline)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="self"):
            return pipeline
        case ast.Name(id=name):
            assigned = _assigned(name, function)
            return None if assigned is None else value_in(assigned)
        case ast.Attribute(value=owner, attr=name):
            return getattr(value_in(owner), name, None)
        case ast.Subscript(value=owner, slice=ast.Constant(value=int(index))):
            found = value_in(owner)
            if isinstance(found, list | tuple) and index < len(found):
                return found[index]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            whole = [one for one in (value_in(left), value_in(right)) if type(one) is int]
            return math.prod(whole) if len(whole) == 2 else None
        case ast.IfExp(body=body, orelse=orelse):  # such as of one transformer or of another
            return next((one for one in map(value_in, (body, orelse)) if one is not None), None)
        case ast.Call(func=ast.Name(id="int"), args=[argument]):
            return value_in(argument)
    return None


def _assigned(name: str, function: ast.FunctionDef) -> ast.expr | None:
    """Return what a method assigns to a name of its own, if it does so once."""
    found = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return found[0] if len(found) == 1 else None
