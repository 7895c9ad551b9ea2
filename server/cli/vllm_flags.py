"""Flags of vLLM and vllm-omni that this command line does not take, and what to use instead.

The rows are in vllm_flags.yaml. Arguments of vLLM's engine are read from vLLM; of these only one
that has no effect in any stage is there.
"""

from functools import cache
from importlib.resources import files
from typing import TypedDict

import yaml

from omnistage.stage_configs.rules.engine_arguments import is_switch, vllm_arguments

SAME_SWITCHES = ("--allow-credentials",)  # of vLLM, and ours
LEAVE_OUT = "leave it out"


class Row(TypedDict):
    """Flags with one answer."""

    flags: list[str]
    instead: str


class Table(TypedDict):
    """The flags of each server; vLLM's short names of arguments of its engine."""

    vllm: list[Row]
    omni: list[Row]
    short: dict[str, str]


@cache
def table() -> Table:
    """Reads the rows."""
    text = files("omnistage.server.cli").joinpath("vllm_flags.yaml").read_text("utf-8")
    read: Table = yaml.safe_load(text)
    return read


@cache
def answers() -> dict[str, str]:
    """Returns each flag with its answer."""
    rows = (*table()["vllm"], *table()["omni"])
    return {flag: row["instead"] for row in rows for flag in row["flags"]}


def instead_of(flag: str, value: str = "") -> str:
    """Returns what replaces a flag of vLLM or vllm-omni here; empty if it is none of theirs."""
    name, _, below = flag.partition(".")
    dashed = f"--{name.removeprefix('--').replace('_', '-')}" if name.startswith("--") else name
    if dashed in answers():
        return answers()[dashed].replace("`", "")
    argument = table()["short"].get(dashed, dashed.removeprefix("--").replace("-", "_"))
    if argument in vllm_arguments():
        given = "true" if is_switch(argument) and not below else value or "VALUE"
        return f"use --stage NAME.{argument}{below and f'.{below}'}={given}"
    if argument.removeprefix("no_") in vllm_arguments():
        return f"use --stage NAME.{argument.removeprefix('no_')}=false"
    return LEAVE_OUT if dashed.replace("--no-", "--") in (*answers(), *SAME_SWITCHES) else ""
