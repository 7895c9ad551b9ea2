"""Which graph a hub name gets, by the files that the hub has."""

import json
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import GRAPHS, pick_graph

FILES: dict[str, dict[str, dict[str, str]]] = {
    "a/pipeline": {"model_index.json": {}},
    "a/text": {"config.json": {"model_type": "qwen3"}},
    "a/omni": {"config.json": {"model_type": "qwen3_omni_moe"}},
    "a/nothing": {},
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(model: str, name: str) -> str:
        if name not in FILES[model]:
            raise LocalEntryNotFoundError(name)
        path = tmp_path / name
        path.write_text(json.dumps(FILES[model][name]))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)


@pytest.mark.parametrize(
    ("model", "graph"),
    [
        ("a/pipeline", "diffusers.yaml"),
        ("a/text", "vllm_text.yaml"),
        ("a/omni", "qwen3_omni_1gpu.yaml"),
    ],
)
def test_the_graph_of_a_hub_name(model: str, graph: str) -> None:
    assert pick_graph(model, 1).name == graph


def test_a_name_without_a_model_is_told() -> None:
    with pytest.raises(GraphError, match="'a/nothing' is neither"):
        pick_graph("a/nothing", 1)


def test_the_graph_of_qwen_image_is_that_of_any_pipeline_with_its_model() -> None:
    named = load_graph(GRAPHS / "qwen_image.yaml")
    any_pipeline = load_graph(GRAPHS / "diffusers.yaml", "Qwen/Qwen-Image")
    assert named == any_pipeline.model_copy(update={"outputs": {"image": "dit"}})
