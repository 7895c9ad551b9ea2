"""`omnistage tiny`."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from omnistage.connectors.registry import Unusable
from omnistage.server.cli.graphs import fail
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family, TinyModel

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter


class TinyCommand(TyperCommand):
    """Names the models in its help only: asking the families for them takes a moment."""

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """As always, with the names."""
        self.epilog = f"Models: {known_models()}."
        super().format_help(ctx, formatter)


def tiny(
    model: Annotated[str, typer.Argument(help="The model, by one of the names below.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    seed: Annotated[int, typer.Option(help="The seed of the random weights.")] = 0,
    real_size: Annotated[
        bool,
        typer.Option(
            "--real-size",
            help="Write the real sizes without weights, to be served with --load-format dummy.",
        ),
    ] = False,
) -> None:
    """Write a tiny checkpoint with random weights, to try and test with."""
    try:
        writers = FAMILIES.part(model, tiny_models)
    except KeyError:
        problems = [f"; {problem}" for problem in FAMILIES.problems()]
        message = f"unknown model {model!r}; allowed: {known_models()}"
        raise fail("".join([message, *problems])) from None
    except Unusable as error:
        raise fail(str(error)) from None
    if not real_size:
        resolve_name(writers.write)(folder, seed)
    elif writers.write_real_size:
        resolve_name(writers.write_real_size)(folder)
    else:
        raise fail(f"{model} has no real size here")


def tiny_models(family: Family) -> Mapping[str, TinyModel]:
    """Those that a family writes."""
    return family.tiny


def known_models() -> str:
    """All names."""
    return ", ".join(sorted(FAMILIES.owners(tiny_models)))
