"""docs/options.md has every option of the commands that read a graph, with its variable."""

import re
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.strict_command import PREFIX
from omnistage.stage_configs.declared.sampling import StageParameters
from omnistage.stage_configs.declared.stage import SAMPLING, StageSpec
from omnistage.stage_configs.pick import GRAPHS

TEXT = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
GROUP: Any = typer.main.get_command(cli.app)
COMMANDS = ("serve", "plan", "check", "up")
ROWS = re.findall(r"^\| (`--[^|]*`) \| `(OMNISTAGE_\w+)` \|", TEXT, re.MULTILINE)
DRAWINGS = re.findall(r"has `(--\w+)` \(`(OMNISTAGE_\w+)`\)", TEXT)


def documented() -> dict[str, str]:
    """Each flag of the page, with its variable."""
    shown = [(flag, name) for flags, name in ROWS for flag in re.findall(r"--[a-z-]+", flags)]
    return dict([*shown, *DRAWINGS])


def test_the_page_has_every_flag_with_its_variable_and_no_other() -> None:
    flags: dict[str, str] = {}
    for command in COMMANDS:
        for option in GROUP.commands[command].params:
            if option.param_type_name == "option":
                envvar = option.envvar
                name = envvar or f"{PREFIX}_{option.name.upper()}"
                flags |= dict.fromkeys(option.opts, name)
    assert documented() == flags


def test_a_variable_is_named_by_the_rule() -> None:
    for flag, name in documented().items():
        if flag != "--otlp-traces-endpoint":  # a second name of --otlp-endpoint
            assert name == f"{PREFIX}_{flag.removeprefix('--').replace('-', '_').upper()}"


def test_the_parameters_of_default_sampling_are_all_named() -> None:
    (sentence,) = re.findall(r"`PARAMETER` is one of (.*?), in the bounds", TEXT, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(StageParameters.model_fields)
    assert f"`{SAMPLING}:`" in TEXT


SHOWN = re.findall(r"`((?:thinker|talker)\.[\w.]+=[^`]+)`", TEXT)


def test_the_overrides_that_are_shown_are_taken() -> None:
    assert len(SHOWN) >= 5
    assert "environment" in StageSpec.model_fields
    tiny = str(GRAPHS / "qwen3_omni_tiny.yaml")
    asked = [part for text in SHOWN for part in ("--stage", text)]
    more = re.findall(r"`((?:deadlines|edges)\.[\w.]+=\d+)`", TEXT)
    assert len(more) >= 2
    asked += [part for text in more for part in ("--set", text)]
    result = CliRunner().invoke(cli.app, ["check", tiny, *asked])
    assert result.exit_code == 0, result.output
