"""Gives a command the options of `omnistage serve` beside its own."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any

from omnistage.server.cli.serving.options import ServeOptions
from omnistage.server.options.declared import Declared, declared, given_fields
from omnistage.server.options.gateway import GatewayOptions

PLAIN = "plain"  # the field of ServeOptions for the options of the server that one flag makes
OPTIONS = "options"  # the parameter of a command that gets them
SERVER = tuple(declared(GatewayOptions))
COMMAND = tuple(field for field in fields(ServeOptions) if field.name != PLAIN)


def with_serve_options(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a command that takes every option of `serve` beside its own parameters.

    A parameter of its own with the name of an option stands in that option's place.
    """
    own = [one for one in inspect.signature(command).parameters.values() if one.name != OPTIONS]
    own_names = {one.name for one in own}
    added = [
        _parameter(field.name, field.type, field.default)
        for field in COMMAND
        if field.name not in own_names
    ]
    added += [_parameter(one.keyword, _typed(one), _default_of(one)) for one in SERVER]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + added

    @wraps(command)
    def run(**given: Any) -> None:
        plain = GatewayOptions(**given_fields(GatewayOptions, given))
        options = ServeOptions(**{one.name: given[one.name] for one in COMMAND}, plain=plain)
        command(**{name: given[name] for name in own_names}, options=options)

    run.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=None)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _typed(option: Declared) -> Any:
    """Returns an option's annotation in types that Typer knows."""
    kind = list[str] | None if option.kind == tuple[str, ...] else option.kind
    return Annotated[kind, option.flag]


def _default_of(option: Declared) -> Any:
    """Returns an option's default as somebody would type it."""
    if option.default == ():
        return None
    return option.default if option.unit == 1 else option.default // option.unit
