"""`omnistage bench`: our own commands, and those of the families."""

from collections.abc import Callable, Mapping
from functools import wraps
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup
from typer.main import get_command

from omnistage.connectors.registry import Unusable
from omnistage.server.cli.graphs import fail
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family

if TYPE_CHECKING:
    from typer._click import Command, Context


class Benches(TyperGroup):
    """A group that asks the families for their commands when one is wanted."""

    def list_commands(self, ctx: "Context") -> list[str]:
        """Ours, then theirs."""
        return [*super().list_commands(ctx), *sorted(FAMILIES.owners(benches))]

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        """One of either; None for an unknown one."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        try:
            path = FAMILIES.part(cmd_name, benches)
        except KeyError:
            return None
        except Unusable as error:
            raise fail(str(error)) from None
        return _command(cmd_name, path)


def benches(family: Family) -> Mapping[str, str]:
    """The commands that a family has."""
    return family.benches


def _command(name: str, path: str) -> "Command":
    app = typer.Typer(add_completion=False)
    app.command(name)(_told_in_one_line(resolve_name(path)))
    return get_command(app)


def _told_in_one_line(bench: Callable[..., None]) -> Callable[..., None]:
    """The same function, whose ValueError ends the program with its sentence."""

    @wraps(bench)
    def run(**options: object) -> None:
        try:
            bench(**options)
        except ValueError as error:
            raise fail(str(error)) from None

    return run
