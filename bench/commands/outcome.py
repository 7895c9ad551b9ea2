"""How every command of `omnistage bench` runs its measurement, and keeps what came of it."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console

T = TypeVar("T")


def outcome(measuring: Coroutine[object, object, T]) -> T:
    """Returns what was measured; a server that cannot be measured at all ends the command with
    why.
    """
    from omnistage.bench.client import ServerError

    try:
        return asyncio.run(measuring)
    except ServerError as error:
        _print(f"error: {error}")
        raise typer.Exit(1) from None


def warn(message: str) -> None:
    """Print a remark as one line; results go on."""
    _print(f"warning: {message}")


def _print(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(line, markup=False, highlight=False)


def keep(report: BaseModel, file: Path | None, *, has_failed: bool) -> None:
    """Write the report if that was asked for; a command whose requests failed exits with 1."""
    if file is not None:
        file.write_text(report.model_dump_json() + "\n", "utf-8")
    if has_failed:
        raise typer.Exit(1)
