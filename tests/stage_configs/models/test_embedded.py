"""Embedded models: served by their names, called by them, and without a download."""

import json
from pathlib import Path

import pytest

from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.models.embedded import CHECKPOINTS, EMBEDDED
from omnistage.stage_configs.pick import GRAPHS, find_graph, pick_graph

LIMIT_BYTES = 64 << 20


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_name_is_a_graph_with_folders_of_the_package(name: str) -> None:
    graph = find_graph(name)
    for stage in graph.stages.values():
        folder = Path(stage.model or graph.model)
        assert folder.is_relative_to(CHECKPOINTS)
        assert list(folder.rglob("*.safetensors"))
    assert graph.served_name in EMBEDDED
    assert "toy" in graph.note
    assert "not Qwen" in graph.note


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_folder_of_the_same_name_needs_a_path_and_one_line_reports_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    monkeypatch.chdir(tmp_path)
    assert Path(find_graph(name).model).is_relative_to(CHECKPOINTS)
    (line,) = caplog.messages
    assert line.startswith(f"{name} is the model that comes with omnistage")
    assert line.endswith(f"./{name}")
    caplog.clear()
    for path in (f"./{name}", str(tmp_path / name)):
        assert find_graph(path).model == path
        assert pick_graph(path, 0).file.name == "vllm_text.yaml"
    assert load_graph(GRAPHS / "vllm_text.yaml", f"./{name}").model == f"./{name}"
    assert not caplog.messages


def test_any_graph_may_name_an_embedded_checkpoint() -> None:
    graph = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", "small")
    assert graph.model == str(CHECKPOINTS / "small")
    assert graph.served_names == ("small",)


def test_the_checkpoint_elsewhere_gets_a_graph_for_small_ones_on_any_machine() -> None:
    """As one that was trained again."""
    for num_gpus in (0, 1, 2):
        picked = pick_graph(str(CHECKPOINTS / "small"), num_gpus)
        assert picked.file.name == "qwen3_omni_tiny.yaml"


def test_the_checkpoints_are_as_small_as_is_promised() -> None:
    files = [path for path in CHECKPOINTS.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= LIMIT_BYTES


@pytest.mark.parametrize("path", sorted(CHECKPOINTS.iterdir()), ids=lambda path: path.name)
def test_a_model_card_says_what_it_is(path: Path) -> None:
    card = (path / "README.md").read_text()
    for word in ("license: apache-2.0", "toy", "not Qwen"):
        assert word in card
