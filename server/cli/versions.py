"""`omnistage --version`."""

import platform

import typer

from omnistage.stage_configs.packages import VLLM_PACKAGES, installed


def versions() -> str:
    """Returns the versions that a bug report needs, without importing what they are of."""
    parts = {
        "omnistage": installed("omnistage"),
        "vLLM": installed(*VLLM_PACKAGES),
        "torch": installed("torch"),
        "Python": platform.python_version(),
    }
    return ", ".join(f"{name} {number or 'not installed'}" for name, number in parts.items())


def print_versions(is_wanted: bool) -> None:
    """Prints the versions and ends, if `--version` was typed."""
    if is_wanted:
        typer.echo(versions())
        raise typer.Exit
