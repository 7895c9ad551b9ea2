"""The model that `omnistage up` serves where none is named: written once, kept in the cache."""

import subprocess
import sys
from pathlib import Path

import typer

from omnistage.stage_configs.cache_folder import cache_folder
from omnistage.stage_configs.packages import installed
from omnistage.stage_configs.random_weights import MARK

TINY = "qwen3-omni"  # as of `omnistage tiny`: the choice is here and nowhere else
NAME = f"tiny-{TINY}"  # what requests may call it


def default_folder() -> Path:
    """Returns where the default model is, or will be; each version of omnistage has its own."""
    return cache_folder() / "models" / installed("omnistage") / NAME


def default_model() -> Path:
    """Returns the folder of the default model, which is written if it is not there.

    Raises typer.Exit if it cannot be written.
    """
    folder = default_folder()
    if (folder / MARK).is_file():
        return folder
    typer.echo(f"writing a tiny model with random weights to {folder}", err=True)
    # In a process of its own: what it imports, torch among it, would stay in the server's. A
    # start beside ours may write the same files at the same time.
    command = [sys.executable, "-m", "omnistage.server.cli", "tiny", TINY, str(folder), "--force"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
    return folder
