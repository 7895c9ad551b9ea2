"""A graph as tables and as a drawing."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.svg import argument_lines
from omnistage.stage_configs.graph import StageSpec
from omnistage.stage_configs.pick import GRAPHS

runner = CliRunner()
SVG = "{http://www.w3.org/2000/svg}"
SHIPPED = sorted(GRAPHS.glob("*.yaml"))


def drawn(path: Path, *arguments: str) -> ElementTree.Element:
    result = runner.invoke(cli.app, ["plan", str(path), "--svg", *arguments])
    assert result.exit_code == 0, result.output
    return ElementTree.fromstring(result.output)


def texts(root: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_drawing_is_well_formed_and_has_a_box_a_stage_inside_its_frame(path: Path) -> None:
    root = drawn(path)
    written = yaml.safe_load(path.read_text())
    said = texts(root)
    assert set(written["stages"]) <= set(said)
    assert ", ".join(written["outputs"]) in said or set(written["outputs"]) <= set(said)
    arrows = root.findall(f".//{SVG}path[@marker-end]")
    assert len(arrows) == len(written.get("edges", [])) + len(set(written["outputs"].values())) + 1
    marks = {f"url(#{mark.get('id')})" for mark in root.iter(f"{SVG}marker")}
    assert {arrow.get("marker-end") for arrow in arrows} <= marks
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    for group in root.iter(f"{SVG}g"):
        x, y = map(float, str(group.get("transform")).removeprefix("translate(")[:-1].split())
        frame = group[0]
        assert 0 <= x <= width - float(str(frame.get("width")))
        assert 0 <= y <= height - float(str(frame.get("height")))


def test_what_would_break_a_drawing_is_written_so_that_it_does_not(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(
        "model: '<&\"> ]]>'\nstages: {text: {kind: vllm.text, engine: {tokenizer: '<script>'}}}\n"
        "outputs: {text: text}\n"
    )
    said = texts(drawn(path))
    assert '<&"> ]]>' in said
    assert "tokenizer: <script>" in said


def test_a_stage_with_many_arguments_is_not_endless_and_tells_no_token() -> None:
    stage = StageSpec(name="a", kind="vllm.text", engine={"hf_token": "hf_secret", "seed": 1})
    assert argument_lines(stage) == ["hf_token: …", "seed: 1"]


def test_a_drawing_shows_what_was_changed_and_cuts_what_is_long() -> None:
    tiny = GRAPHS / "qwen3_omni_tiny.yaml"
    root = drawn(tiny, "--stage", "talker.seed=4242", "--served-model-name", "called")
    said = texts(root)
    assert "seed: 4242" in said
    assert "called" in said
    assert any(line.endswith("…") for line in said)
    assert max(map(len, said)) <= 40


def test_a_plan_of_a_folder_is_of_the_graph_that_would_serve_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    result = runner.invoke(cli.app, ["plan", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "vllm.text" in result.output


def test_replicas_are_in_the_table_and_in_the_drawing(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    stage = "{kind: vllm.text, gpus: [[0], [1]]}"
    path.write_text(f"model: a/b\nstages: {{text: {stage}}}\noutputs: {{text: text}}\n")
    assert {"GPUs: 0 | 1", "replicas: 2"} <= set(texts(drawn(path)))
    result = runner.invoke(cli.app, ["check", str(path)], env={"CUDA_VISIBLE_DEVICES": "0"})
    assert "replicas: 2" in result.output
    said = " ".join(result.output.split())
    assert "warning: stage text@1 wants GPU 1; this machine has 1" in said
    assert "text@0 wants" not in said
