"""A graph as tables."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.planning.stage_texts import argument_lines
from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.pick import GRAPHS

runner = CliRunner()
SHIPPED = sorted(GRAPHS.glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_plan_has_stages_arguments_edges_and_outputs(path: Path) -> None:
    result = runner.invoke(cli.app, ["plan", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    written = yaml.safe_load(path.read_text())
    for name, stage in written["stages"].items():
        assert name in result.output
        assert stage["kind"] in result.output
        assert all(key in result.output for key in stage.get("engine", {}))
    assert all(output in result.output for output in written["outputs"])


def test_a_stage_with_many_arguments_tells_no_token() -> None:
    stage = StageSpec(name="a", kind="vllm.text", engine={"hf_token": "hf_secret", "seed": 1})
    assert argument_lines(stage) == ["hf_token: …", "seed: 1"]


def test_a_plan_shows_what_was_changed() -> None:
    changes = ["--stage", "talker.seed=4242", "--stage", "thinker.gpus=[3]"]
    result = runner.invoke(cli.app, ["plan", str(GRAPHS / "qwen3_omni_tiny.yaml"), *changes])
    assert result.exit_code == 0, result.output
    assert "seed: 4242" in result.output
    assert "warning: stage thinker wants GPU 3" in " ".join(result.output.split())


def test_a_plan_of_a_folder_is_of_the_graph_that_would_serve_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    result = runner.invoke(cli.app, ["plan", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "vllm.text" in result.output


def test_replicas_are_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    stage = "{kind: vllm.text, gpus: [[0], [1]]}"
    path.write_text(f"model: a/b\nstages: {{text: {stage}}}\noutputs: {{text: text}}\n")
    result = runner.invoke(cli.app, ["check", str(path)], env={"CUDA_VISIBLE_DEVICES": "0"})
    assert "replicas: 2" in result.output
    said = " ".join(result.output.split())
    assert "warning: stage text@1 wants GPU 1; this machine has 1" in said
    assert "text@0 wants" not in said
