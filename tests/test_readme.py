"""What the README shows works: requests, graph fragment, commands, drawing, figures, tables."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gateway import OMNI, running_gateway
from support.offline import FakeStages, fake_omni
from support.snippets import SERVER, send
from typer.testing import CliRunner

from omnistage.server import cli, offline
from omnistage.stage_configs.graph import Deadlines
from omnistage.stages.vllm.family import TEXT_ONLY

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """The cells of each line of a table, without its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


@pytest.mark.parametrize("command", fenced("sh"), ids=["text", "speech"])
def test_a_request_is_answered(command: str, tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        words = shlex.split(command.replace(SERVER, gateway.url))
        answer = send(words, tmp_path)
    assert answer.status_code == 200
    message = answer.json()["choices"][0]["message"]
    assert message["content"] or message["audio"]["data"]


def test_there_is_an_extra_for_each_way_to_install() -> None:
    named = set(re.findall(r'pip install "(?:omnistage|\.)\[(\w+)\]"', TEXT))
    assert named == {"cuda", "cpu", "demo"}
    assert named <= PROJECT["optional-dependencies"].keys()


def test_the_versions_of_python_are_those_of_the_package() -> None:
    low, high = re.findall(r"Python (3\.\d+) to 3\.(\d+)", TEXT)[0]
    assert PROJECT["requires-python"] == f">={low},<3.{int(high) + 1}"


def test_the_drawing_is_the_graph_s() -> None:
    (path,) = re.findall(r"`omnistage check (\S+) --mermaid`", section("How it works"))
    (drawing,) = [block for block in fenced("mermaid") if block.startswith("flowchart")]
    result = CliRunner().invoke(cli.app, ["check", str(ROOT / path), "--mermaid"])
    assert result.output == drawing


def test_the_figures_are_those_of_the_page_of_performance() -> None:
    (table,) = re.findall(r"## Figures.*?(\| streams.*?)\n\n", TEXT, re.DOTALL)
    measured: dict[str, list[str]] = {}
    stalls = {}
    for name in ("bf16", "FP8"):
        for line in re.findall(rf"^\| \d+ \| {name} \|.*$", PERFORMANCE, re.MULTILINE):
            streams, _, _, first, rtf, stall, _, audio = (
                one.strip() for one in line[1:-1].split("|")
            )
            measured.setdefault(streams, []).extend([*(p50(one) for one in (first, rtf)), audio])
            stalls[streams, name] = stall
    assert {row[0]: row[1:] for row in rows(table)} == {
        streams: cells for streams, cells in measured.items() if len(cells) == 6
    }
    longest = stalls["64", "FP8"].split(", ")[1]
    assert f"a player's longest stall was {longest} ms (p99)" in section("Figures")
    assert f"after {measured['64'][3]} ms (p50)" in section("Figures")


def p50(cell: str) -> str:
    """The first of a cell's two figures."""
    return cell.split(",")[0]


def test_the_chart_is_the_comparison_of_the_page_of_performance() -> None:
    (chart,) = [block for block in fenced("mermaid") if block.startswith("xychart")]
    ours, theirs = (json.loads(line) for line in re.findall(r"line (\[.*\])", chart))
    (table,) = re.findall(r"## Beside a peer.*?(\| streams.*?)\n\n", PERFORMANCE, re.DOTALL)
    pairs = [row[3].split(",") for row in rows(table)]
    assert [[float(one) for one in pair] for pair in pairs] == [
        list(pair) for pair in zip(ours, theirs, strict=True)
    ]
    (streams,) = re.findall(r'x-axis "streams" (\[.*\])', chart)
    assert json.loads(streams) == [int(row[0]) for row in rows(table)]


def test_the_table_beside_others_has_this_version_and_the_supported_vllms() -> None:
    table = section("Beside others")
    assert f"omnistage {PROJECT['version']} |" in table
    (wanted,) = [one for one in PROJECT["optional-dependencies"]["cuda"] if "vllm" in one]
    low, high = re.findall(r"0\.(\d+)", wanted)
    assert f"0.{low} to 0.{int(high) - 1}" in table


def test_the_deadlines_are_the_defaults() -> None:
    (fragment,) = fenced("yaml")
    assert Deadlines(**yaml.safe_load(fragment)["deadlines"]) == Deadlines()


def test_every_command_exists() -> None:
    for command in re.findall(r"`omnistage ((?:bench )?[a-z0-9]+)", TEXT):
        result = CliRunner().invoke(cli.app, [*command.split(), "--help"])
        assert result.exit_code == 0, command


def test_every_target_exists() -> None:
    pages = TEXT + (ROOT / "docs" / "contributing.md").read_text()
    targets = set(re.findall(r"`make ([a-z][a-z-]*)", pages))
    assert {"demo", "test", "serve", "check", "chaos", "soak", "docs", "wheel"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_equality_is_claimed_for_what_was_shown() -> None:
    (claim,) = [part for part in TEXT.split("\n\n") if part.startswith("What was shown")]
    for condition in ("random", "float32", "on a CPU", "one GPU", "bfloat16", "performance.md"):
        assert condition in claim


def test_the_table_of_models_says_which_are_text_only() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| others that speak")]
    assert TEXT_ONLY in row


def test_the_compose_file_uses_the_dockerfile_that_is_there() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    builds = [service["build"] for service in services.values() if "build" in service]
    assert builds
    for build in builds:
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = fenced("python")
    stages = FakeStages(tmp_path)
    monkeypatch.setattr(offline, "Omni", lambda model: fake_omni(stages, {**OMNI, "model": model}))
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["answer"].audio is not None
    assert [answer.text for answer in names["answers"]] == ["Hello there"] * 2
