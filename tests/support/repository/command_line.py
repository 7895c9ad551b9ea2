"""The command line of the package, to try calls that files and pages contain."""

import re
from typing import Any

import typer.main
from typer.testing import CliRunner

from omnistage.server.cli import app

GROUP: Any = typer.main.get_command(app)


def parse(command: str, arguments: list[str]) -> None:
    """Raises if our command line has no such command, or the command takes no such arguments."""
    GROUP.commands[command].make_context(command, arguments)


runner = CliRunner()


def plain(text: str) -> str:
    """Without colours, and as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
