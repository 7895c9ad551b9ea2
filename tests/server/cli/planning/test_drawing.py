"""`omnistage check FILE --mermaid`: the drawing has every part of the graph, and nothing else."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.planning.drawing import mermaid
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stage_configs.rules.edge_payloads import named

ARROW = re.compile(
    r"^    (?:stage_)?(\w+)(?:\(\[\w+\]\))? <?-- ([\w' ]+) --> (?:stage_)?(\w+)$", re.M
)


@pytest.mark.parametrize("path", sorted(GRAPHS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_arrows_are_the_edges_and_outputs_of_the_graph(path: Path) -> None:
    graph = load_graph(path)
    drawn = mermaid(graph)
    arrows = set(ARROW.findall(drawn))
    assert len(arrows) == drawn.count("-->")
    wanted = {("clients", "HTTP", "gateway")}
    wanted |= {("gateway", "requests", name) for name in graph.entries(graph.outputs)}
    wanted |= {(edge.source, named(graph.carried(edge)), edge.target) for edge in graph.edges}
    wanted |= {(maker, output, "gateway") for output, maker in graph.outputs.items()}
    assert arrows == wanted


@pytest.mark.parametrize("path", sorted(GRAPHS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_stage_is_a_box_with_its_kind_and_its_gpus(path: Path) -> None:
    graph = load_graph(path)
    boxes = dict(re.findall(r'stage_(\w+)\["(.*)"\]', mermaid(graph)))
    assert boxes.keys() == graph.stages.keys()
    for name, stage in graph.stages.items():
        gpus = [f"GPU {gpu}" for gpu in stage.gpus]
        assert boxes[name].split("<br>") == [f"<b>{name}</b>", stage.kind, *gpus]


def test_a_stage_may_be_called_by_a_word_of_mermaid_or_of_the_drawing(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    for name in ("end", "clients"):
        path.write_text(f"stages: {{{name}: {{kind: vllm.text}}}}\noutputs: {{text: {name}}}\n")
        drawn = mermaid(load_graph(path))
        assert f"stage_{name}[" in drawn
        assert drawn.count("clients([clients])") == 1


def test_the_command_prints_the_drawing_and_nothing_else() -> None:
    path = GRAPHS / "qwen3_omni_1gpu.yaml"
    result = CliRunner().invoke(cli.app, ["check", str(path), "--mermaid"])
    assert result.exit_code == 0
    assert result.output == mermaid(load_graph(path)) + "\n"


def test_a_graph_that_is_wrong_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("stages: {text: {kind: vllm.txt}}\noutputs: {text: text}\n")
    result = CliRunner().invoke(cli.app, ["check", str(path), "--mermaid"])
    assert result.exit_code == 1
    assert "flowchart" not in result.output


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ("gpus: [[1], [2]]", ["2 replicas", "GPU 1 | GPU 2"]),
        ("gpus: [1], replicas: 2", ["2 replicas", "GPU 1"]),
        ("replicas: 1, max_replicas: 3", ["1 of at most 3 replicas"]),
        ("gpus: [[1]]", ["GPU 1"]),
    ],
)
def test_a_box_says_how_many_replicas_its_stage_has_and_where(
    keys: str, lines: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(f"stages: {{text: {{kind: vllm.text, {keys}}}}}\noutputs: {{text: text}}\n")
    (box,) = re.findall(r'stage_text\["(.*)"\]', mermaid(load_graph(path)))
    assert box.split("<br>") == ["<b>text</b>", "vllm.text", *lines]
