"""The plans of docs/scaling.md run, and what they write is a graph file."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.graph_file import load_graph

TEXT = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
COMMANDS = re.findall(r"^    omnistage (plan .*)$", TEXT, re.MULTILINE)


def test_there_are_plans() -> None:
    assert len(COMMANDS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_plan_that_is_shown_runs_and_its_graph_file_is_valid(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, command.split())
    assert result.exit_code == 0, result.output
    for path in tmp_path.glob("*.yaml"):
        assert load_graph(path).model == "Qwen/Qwen3-Omni-30B-A3B-Instruct"
    assert bool(list(tmp_path.glob("*.yaml"))) == ("--write" in command)
