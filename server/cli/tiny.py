"""`omnistage tiny`."""

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from omnistage.connectors.registry import Unusable
from omnistage.server.cli.graphs import fail
from omnistage.server.cli.guard import refused
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family, TinyModel
from omnistage.stage_configs.models.random_weights import RANDOM_NOTE, mark_random

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

UNFINISHED = ".unfinished-"  # begins the name of the folder in which files are written
# The libraries' own words about what is written: warnings of transformers, bars of tqdm.
SILENT = {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}


class TinyCommand(TyperCommand):
    """Names the models in its help only: asking the families for them takes a moment."""

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Writes the usual help, with the names of the models."""
        self.epilog = f"Models: {known_models()}."
        super().format_help(ctx, formatter)


def tiny(
    model: Annotated[str, typer.Argument(help="The model, by one of the names below.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write: a new or an empty one.")],
    seed: Annotated[int, typer.Option(help="The seed of the random weights.")] = 0,
    real_size: Annotated[
        bool,
        typer.Option(
            "--real-size",
            help="Write the real sizes without weights, to be served with --load-format dummy.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write into a folder that is not empty, too: files with the same names are "
            "replaced, all others stay.",
        ),
    ] = False,
) -> None:
    """Write a tiny checkpoint with random weights, to try and test with."""
    silence()
    write = writer_of(model, seed, is_real_size=real_size)
    write_model(write, folder, is_forced=force)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    what = "its real sizes, without weights" if real_size else RANDOM_NOTE
    typer.echo(f"wrote {model} to {folder} ({size:.1f} MB; {what})")
    dummy = " --load-format dummy" if real_size else ""
    typer.echo(f"next: omnistage serve {shlex.quote(str(folder))}{dummy}")


def silence() -> None:
    """Keeps the libraries that write models from reporting it; before they are imported."""
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)


def writer_of(model: str, seed: int, *, is_real_size: bool = False) -> Callable[[Path], object]:
    """Returns what writes a model's files into a folder; typer.Exit for an unknown model."""
    try:
        writers = FAMILIES.part(model, tiny_models)
    except KeyError:
        problems = [f"; {problem}" for problem in FAMILIES.problems()]
        message = f"unknown model {model!r}; allowed: {known_models()}"
        raise fail("".join([message, *problems])) from None
    except Unusable as error:
        raise fail(str(error)) from None
    if is_real_size:
        if not writers.write_real_size:
            raise fail(f"{model} has no real size here")
        return partial(_write, writers.write_real_size)
    return partial(_write_random, writers.write, model, seed)


def _write(path: str, folder: Path) -> None:
    resolve_name(path)(folder)


def _write_random(path: str, model: str, seed: int, folder: Path) -> None:
    resolve_name(path)(folder, seed)
    mark_random(folder, model)


def write_model(write: Callable[[Path], object], folder: Path, *, is_forced: bool = False) -> None:
    """Writes a model's files into a folder, all or none of them.

    Raises typer.Exit if the folder is not empty and `is_forced` is False, or if the machine
    refuses: no permission, a full disk.
    """
    try:
        if not is_forced and folder.is_dir() and any(folder.iterdir()):
            raise fail(f"{folder} is not empty: take another folder, or add --force")
        with unfinished(folder) as place:
            write(place)
            _move(place, folder)
    except OSError as error:
        raise fail(f"cannot write to {folder}: {refused(error)}") from None
    except Exception as error:  # of safetensors, which has its own for a full disk
        if type(error).__name__ != "SafetensorError":
            raise
        raise fail(f"cannot write to {folder}: {error}") from None


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Yields a place below `folder` at which nothing is yet, for its files.

    A failure leaves no folder that was made for it.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as place:
            yield Path(place) / "files"
    except BaseException:
        with suppress(OSError):  # what is not empty stays
            for one in made:
                one.rmdir()
        raise


def _move(place: Path, folder: Path) -> None:
    """Moves the files, each to the same place below `folder`."""
    for path in sorted(place.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


def tiny_models(family: Family) -> Mapping[str, TinyModel]:
    """Returns the tiny models that a family writes."""
    return family.tiny


def known_models() -> str:
    """All names."""
    return ", ".join(sorted(FAMILIES.owners(tiny_models)))
