"""Gives a command the options of `omnistage serve` beside its own."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any

from omnistage.server.cli.serving.options import ServeOptions

NAMES = tuple(field.name for field in fields(ServeOptions))
OPTIONS = "options"  # the parameter of a command that gets them


def with_serve_options(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a command that takes every option of `serve` beside its own parameters.

    A parameter of its own with the name of an option stands in that option's place.
    """
    own = [one for one in inspect.signature(command).parameters.values() if one.name != OPTIONS]
    own_names = {one.name for one in own}
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(
            field.name, keyword, annotation=field.type, default=_default_of(field.default)
        )
        for field in fields(ServeOptions)
        if field.name not in own_names
    ]
    parameters = [one.replace(kind=keyword) for one in own] + added

    @wraps(command)
    def run(**given: Any) -> None:
        options = ServeOptions(**{name: given[name] for name in NAMES})
        command(**{name: given[name] for name in own_names}, options=options)

    run.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=None)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _default_of(default: Any) -> Any:
    return inspect.Parameter.empty if default is MISSING else default
