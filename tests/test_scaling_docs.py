"""The plans and forecasts of docs/scaling.md are those that the commands print."""

import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.graph_file import load_graph

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "scaling.md").read_text()

COMMANDS = re.findall(r"^    omnistage (plan .*)$", TEXT, re.MULTILINE)
PLANS = re.findall(r"^\| `(--gpus [^`]*)` \| (.*) \|$", TEXT, re.MULTILINE)
DOING = (
    "audio s/s at full load",
    "sessions at most",
    "TTFP ms, p50, p99",
    "longest stall ms, p50, p99",
    "$ an audio hour",
)
LIMITS = ("GPUs", "gateway's core", "network, 10 Gbit/s", "history, thinker's prompts alone")


def cells(start: str) -> list[str]:
    """The cells of the one row of a table that begins so."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


@cache
def planned(options: str) -> str:
    """What `omnistage plan` prints."""
    arguments = ["plan", "Qwen/Qwen3-Omni-30B-A3B-Instruct", *options.split()]
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def printed(options: str, figure: str) -> str:
    """The value of one figure, in the table that has it."""
    rows = [row.split("│") for row in planned(options).splitlines() if row.startswith("│ ")]
    (found,) = [cells[2].strip() for cells in rows if cells[1].strip() == figure]
    return found


@pytest.mark.parametrize(("options", "shown"), PLANS, ids=[f"{n}" for n in range(len(PLANS))])
def test_the_figures_of_a_plan_are_those_that_its_command_prints(options: str, shown: str) -> None:
    cells = shown.split(" | ")
    figures = DOING if len(cells) == len(DOING) else LIMITS
    assert cells == [printed(options, figure) for figure in figures]


def test_there_are_plans() -> None:
    assert len(PLANS) >= 8
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


@pytest.mark.parametrize(
    ("gpus", "streams"),
    [
        *((1, streams) for streams in (1, 8, 32, 64, 128)),
        *((2, streams) for streams in (1, 64, 128)),
    ],
)
def test_forecasts_are_shown_as_they_are_beside_what_was_measured(gpus: int, streams: int) -> None:
    from omnistage.bench.load import ClosedLoop
    from omnistage.bench.simulation.run import simulate
    from omnistage.server.cli.planning.forecast import Demand, Forecast
    from omnistage.server.cli.planning.gpus import read_gpus
    from omnistage.server.cli.planning.layouts import layouts
    from omnistage.stage_configs.figures import figures_of

    model = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
    made = layouts(figures_of(model), model, read_gpus(f"{gpus}xH200"))
    (layout,) = [one for one in made if one.form == ("cells" if gpus == 1 else "tensor")]
    found = Forecast(layout, Demand())
    load = ClosedLoop(streams, max(16, 4 * streams), 2 * streams)
    level = simulate(found.cell, found.answers(0.0), load).level
    ttfp, rtf = level.metrics["ttfp_s"], level.metrics["rtf"]
    audio = f"{level.rates.audio_s:.{1 if streams == 1 else 0}f}"
    told = [f"{ttfp.p50 * 1000:.0f}", f"{ttfp.p99 * 1000:.0f}", f"{rtf.p50:.3f}", audio]
    start = f"{streams} stream" if gpus == 1 else f"two H200s, *tensor*: {streams} stream"
    shown = [cell.split(", ") for cell in cells(start)[1:]]
    assert [forecast for forecast, _ in shown] == told
    if gpus == 1:
        history = (ROOT / "docs" / "history" / "performance.md").read_text()
        row = re.findall(rf"^\| {streams} \| MPS, in pieces \|(.*)\|$", history, re.MULTILINE)
    else:
        performance = (ROOT / "docs" / "performance.md").read_text()
        table = performance.split("## On two H200s")[1].split("\n## ")[0]
        row = re.findall(rf"^\| {streams} \|(.*)\|$", table, re.MULTILINE)
    _, first, measured_rtf, _, *rates = (one.strip() for one in row[0].split("|"))
    p50, p99 = first.split(", ")
    audio_s = rates[1] if gpus == 1 else rates[0]
    assert [real for _, real in shown] == [p50, p99, measured_rtf.split(", ")[0], audio_s]
