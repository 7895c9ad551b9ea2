"""`omnistage plan --gpus`: what is printed, written and refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.planning import forecast
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

QUICK = {"LEAST_REQUESTS": 60, "OPEN_S": 3.0, "ROUNDS": 2, "PRECISION": 0.2}
OMNI = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
WIDE = {"COLUMNS": "200"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer simulated requests: what is printed is as rough as it is soon there."""
    for name, value in QUICK.items():
        monkeypatch.setattr(forecast, name, value)


def planned(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["plan", OMNI, *arguments], env=WIDE)
    assert result.exit_code == code, result.output
    return result.output


def value(output: str, name: str) -> str:
    (row,) = [line for line in output.splitlines() if line.startswith(f"│ {name} ")]
    return row.split("│")[2].strip()


def test_a_plan_says_layout_memory_speed_price_and_what_is_full_first() -> None:
    output = planned("--gpus", "2xH200", "--sessions", "300", "--price", "2", "--load", "0.6")
    assert f"{OMNI}, 2 x H200: 2 cells of 1 GPU" in output
    assert "thinker: 63.4 weights, 25.8 cache" in output
    assert "300 sessions, of which speech fills 40%" in output
    assert value(output, "audio s/s asked") == "120"
    assert value(output, "$ an audio hour") == f"{2 * 2 / 120:.3f}"
    assert int(value(output, "sessions at most")) >= 300
    assert output.index("GPUs   ") < output.index("gateway's core")
    assert "2 x H200: 1 cell of 2 GPUs" in output
    assert "Forecast by simulation, not measured." in output
    assert "Sessions at most: 60% load, and 99 of 100 answers with a TTFP of 500 ms" in output


def test_every_source_is_printed_and_so_is_what_was_scaled() -> None:
    output = planned("--gpus", "2x80GB")
    flat = " ".join(output.split())
    assert "on H100 every step is taken to be 1.43 times as long, by memory bandwidth" in flat
    assert "Nothing was run there." in flat
    for said in ("omnistage bench bridge", "make gpu ARGS=", "docs/performance.md"):
        assert said in flat


def test_without_sessions_it_is_as_many_as_the_gpus_carry() -> None:
    output = planned("--gpus", "1xH200")
    most = value(output, "sessions at most")
    assert f"{most} sessions, of which" in output
    assert int(value(output, "load ").rstrip("%")) <= 70


def test_too_many_sessions_are_refused_with_the_gpus_that_they_need() -> None:
    output = planned("--gpus", "1xH200", "--sessions", "1000", code=1)
    needed = value(output, "GPUs for these sessions")
    assert f"error: 1000 sessions need {needed} GPUs; 1 carry " in output


@pytest.mark.parametrize(("form", "gpus"), [("cells", 1), ("split", 3)])
def test_the_graph_file_of_a_cell_is_written(form: str, gpus: int, tmp_path: Path) -> None:
    path = tmp_path / "cell.yaml"
    arguments = ["--layout", form, "--write", str(path)]
    output = planned("--gpus", "3xH200", "--speech", "0.5", *arguments)
    cells = 3 // gpus
    assert f"omnistage cells {cells} {path}" in output
    used = {
        gpu
        for stage in load_graph(path).stages.values()
        for replica in stage.all_replicas
        for gpu in replica.gpus
    }
    assert used == set(range(gpus))


def test_figures_of_one_s_own_are_taken_in_place_of_ours(tmp_path: Path) -> None:
    ours = Path(GRAPHS).parent / "stages" / "qwen3_omni" / "figures.yaml"
    slow = tmp_path / "slow.yaml"
    slow.write_text(ours.read_text().replace("share: 0.85", "share: 1.7"))
    rates = [
        float(value(planned("--gpus", "1xH200", *more), "audio s/s at full load"))
        for more in ([], ["--figures", str(slow)])
    ]
    assert rates[1] < 0.7 * rates[0]


REFUSED = [
    (["--gpus", "8xT4"], "--gpus 8xT4: must be such as 8xH200 or 24x80GB; kinds: H200"),
    (["--gpus", "1x80GB"], f"{OMNI} does not fit on 1x80GB: "),
    (["--gpus", "1xH200", "--layout", "split"], "it wants 2 GPUs of a machine, 1 are"),
    (["--gpus", "1xH200", "--layout", "round"], "--layout round: must be one of best, cells"),
    (["--gpus", "1xH200", "--speech", "0"], "--speech 0: must be more than 0 and at most 1"),
    (["--gpus", "1xH200", "--load", "1.5"], "--load 1.5: must be more than 0 and at most 1"),
    (["--gpus", "1xH200", "--price", "-1"], "--price -1: must be more than 0"),
    (["--gpus", "1xH200", "--network-gbit", "0"], "--network-gbit 0: must be more than 0"),
    (["--gpus", "1xH200", "--ttfp-ms", "0"], "--ttfp-ms 0: must be more than 0"),
    (["--gpus", "1xH200", "--ttfp-ms", "1"], "these GPUs carry no session within that load"),
    (["--gpus", "1xH200", "--write", "cell.txt"], "--write cell.txt: writes .yaml files"),
    (["--gpus", "1xH200", "--figures", "/none"], "/none: cannot be read"),
    (["--gpus", "1xH200", "--stage", "talkr.seed=1"], "no stage 'talkr'"),
    (["--sessions", "10"], "--sessions and --write have no effect without --gpus"),
    (["--gpus", "1xH200", "--model", "some/model"], "no measured figures of some/model"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=[" ".join(one[0]) for one in REFUSED])
def test_what_cannot_be_planned_is_refused_in_one_line(arguments: list[str], says: str) -> None:
    output = " ".join(planned(*arguments, code=1).split())
    assert output.startswith("error: ")
    assert says in output
