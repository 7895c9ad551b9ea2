"""Runs what the README shows: its requests, commands, chart and tables."""

import re
import tomllib
from pathlib import Path
from typing import Any

import chart
import pytest
import yaml
from support.gateway.serving import OMNI, running_gateway
from support.media.audio import samples_of
from support.repository.snippets import SERVER, send, words_of
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stages.vllm.family import TEXT_ONLY

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_request_with_curl_is_answered_with_a_file(tmp_path: Path) -> None:
    (command,) = fenced("sh")
    with running_gateway(tmp_path, OMNI) as gateway:
        answer = send(words_of(command.replace(SERVER, gateway.url)), tmp_path)
    assert answer.status_code == 200
    assert len(samples_of((tmp_path / "hello.wav").read_bytes())) > 0


def test_the_program_saves_a_spoken_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = fenced("python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with running_gateway(tmp_path, OMNI) as gateway:
        exec(program.replace(SERVER, gateway.url), names)
        names["client"].close()
    assert capsys.readouterr().out == "Hello there\n"
    assert len(samples_of((tmp_path / "answer.wav").read_bytes())) > 0


def test_it_has_at_most_1000_words() -> None:
    assert len([word for word in TEXT.split() if re.search(r"\w", word)]) <= 1000


def test_there_is_an_extra_for_each_way_to_install() -> None:
    printed = set(re.findall(r'pip install "\.\[([\w,]+)\]"', TEXT))
    named = {extra for names in printed for extra in names.split(",")}
    assert named == {"cuda", "cpu", "demo"}
    assert named <= PROJECT["optional-dependencies"].keys()


def test_the_versions_of_python_are_those_of_the_package() -> None:
    low, high = re.findall(r"Python (3\.\d+) to 3\.(\d+)", TEXT)[0]
    assert PROJECT["requires-python"] == f">={low},<3.{int(high) + 1}"


def test_the_chart_is_drawn_from_the_page_of_performance() -> None:
    rows = chart.read(PERFORMANCE)
    assert [streams for streams, _ in rows] == ["1", "8", "32", "64", "128"]
    assert chart.CHART.read_text() == chart.draw(rows)
    assert str(chart.CHART.relative_to(ROOT)) in section("Speed")


def test_the_latencies_beside_the_chart_are_those_of_the_page_of_performance() -> None:
    (peer,) = re.findall(r"^## Beside a peer\n(.*?)(?=^## )", PERFORMANCE, re.DOTALL | re.MULTILINE)
    ours, theirs = re.findall(r"^\| 64 \| ([^|]+) \| ([^|]+) \|", peer, re.MULTILINE)[0]
    (tail,) = re.findall(r"TTFP was (\d+) ms at p99", peer)
    words = " ".join(section("Speed").split())
    assert f"after {ours} ms (p50) and {tail} ms (p99); from vllm-omni after {theirs} ms" in words


def test_the_table_beside_others_has_this_version_and_the_supported_vllms() -> None:
    table = section("Beside others")
    assert f"omnistage {PROJECT['version']} |" in table
    (wanted,) = [one for one in PROJECT["optional-dependencies"]["cuda"] if "vllm" in one]
    low, high = re.findall(r"0\.(\d+)", wanted)
    assert f"0.{low} to 0.{int(high) - 1}" in table


def test_every_command_exists() -> None:
    for command in re.findall(r"`omnistage ((?:bench )?[a-z0-9]+)", TEXT):
        result = CliRunner().invoke(cli.app, [*command.split(), "--help"])
        assert result.exit_code == 0, command


def test_every_target_exists() -> None:
    pages = TEXT + (ROOT / "docs" / "contributing.md").read_text()
    targets = set(re.findall(r"`make ([a-z][a-z-]*)", pages))
    assert {"test", "serve", "check", "chaos", "soak", "docs", "wheel"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_equality_is_claimed_for_what_was_verified() -> None:
    (claim,) = [line for line in TEXT.splitlines() if line.startswith("| verified |")]
    for condition in ("random", "float32", "On a CPU", "H200", "dummy weights"):
        assert condition in claim


def test_the_table_of_models_says_which_are_text_only() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| other speaking models")]
    assert TEXT_ONLY in row


def test_the_compose_file_uses_the_dockerfile_that_is_there() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    builds = [service["build"] for service in services.values() if "build" in service]
    assert builds
    for build in builds:
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
