"""Ends a command with one sentence in place of a traceback, for what the machine refuses."""

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from omnistage.server.cli.graphs import fail
from omnistage.stage_configs.json_types import JsonMap

if TYPE_CHECKING:
    from typer._click import Context

HIGHEST_PORT = 65535
PORT_CURE = "end what has the port, or take another with {option} (0: any that is free)"
# What pydantic finds, in words for somebody who types.
WORDS: Mapping[str, Callable[[Any, JsonMap], str]] = {
    "int_parsing": lambda value, _: f"{value!r} is not an integer",
    "int_from_float": lambda value, _: f"{value!r} is not an integer",
    "float_parsing": lambda value, _: f"{value!r} is not a number",
    "finite_number": lambda value, _: f"{value!r} is not a finite number",
    "bool_parsing": lambda value, _: f"{value!r} is not true or false",
    "greater_than_equal": lambda value, bound: f"must be at least {bound['ge']}, not {value}",
    "less_than_equal": lambda value, bound: f"must be at most {bound['le']}, not {value}",
    "value_error": lambda _, found: str(found["error"]),
}


class Guarded(TyperGroup):
    """A group whose commands end with a sentence when the machine refuses them something."""

    def invoke(self, ctx: "Context") -> Any:
        """Runs the command; typer.Exit for an OSError, the field's words for a wrong value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                error.message = in_words(error.__cause__) or error.message
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:  # `omnistage plan MODEL | head`: typer ends quietly
                raise
            raise fail(refused(error)) from None


def in_words(error: ValidationError) -> str:
    """Returns what is wrong with a value that was typed; empty if there are no words for it."""
    found = error.errors()[0]
    words = WORDS.get(found["type"])
    return "" if words is None else words(found["input"], found.get("ctx", {}))


def refused(error: OSError) -> str:
    """Returns what the machine refused, with the file if it names one."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*names, error.strerror or str(error) or type(error).__name__])


def cannot_listen(place: str, error: OSError, option: str = "--port") -> str:
    """Returns why nothing can listen at HOST:PORT, the port of `option`, and what to do then."""
    why = (error.strerror or str(error)).partition(" (while attempting")[0]
    cure = "correct --host"
    if error.errno == errno.EADDRINUSE:
        cure = PORT_CURE.format(option=option)
    elif error.errno == errno.EACCES:
        cure = f"ports below 1024 need permission: take another with {option}"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = f"this machine has no address {place.rpartition(':')[0]}"
        cure = "take 127.0.0.1 for this machine alone, or 0.0.0.0 for all of its addresses"
    return f"cannot listen on {place}: {why}; {cure}"
