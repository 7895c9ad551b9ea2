"""Which graph a hub name gets, by the files that the hub has."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import GRAPHS, pick_graph
from omnistage.stages.vllm.family import TEXT_ONLY

FILES: dict[str, dict[str, dict[str, Any]]] = {
    "a/pipeline": {"model_index.json": {}},
    "a/text": {"config.json": {"model_type": "qwen3"}},
    "a/omni": {"config.json": {"model_type": "qwen3_omni_moe"}},
    "a/captioner": {"config.json": {"model_type": "qwen3_omni_moe", "enable_audio_output": False}},
    "a/Thinking": {"config.json": {"model_type": "qwen3_omni_moe", "enable_audio_output": False}},
    "a/reasoner": {
        "config.json": {"model_type": "qwen3_omni_moe", "enable_audio_output": False},
        "chat_template.json": {"chat_template": "{{ '<|im_start|>assistant\\n<think>\\n' }}"},
    },
    "a/nothing": {},
    "a/speaker": {
        "config.json": {
            "model_type": "another_omni",
            "enable_audio_output": True,
            "thinker_config": {"model_type": "another_omni_thinker"},
            "talker_config": {"model_type": "another_omni_talker"},
            "token2wav_config": {"model_type": "another_omni_token2wav"},
        }
    },
    "an/older-omni": {"config.json": {"model_type": "qwen2_5_omni", "enable_audio_output": True}},
    "an/embedding": {"modules.json": {}, "config.json": {"model_type": "qwen3"}},
    "a/listener": {"config.json": {"model_type": "qwen2_audio", "audio_config": {"d_model": 8}}},
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(model: str, name: str, *, local_files_only: bool) -> str:
        if name not in FILES[model]:
            raise LocalEntryNotFoundError(name)
        path = tmp_path / name
        path.write_text(json.dumps(FILES[model][name]))
        return str(path)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda _: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)


@pytest.mark.parametrize(
    ("model", "graph"),
    [
        ("a/pipeline", "diffusers.yaml"),
        ("a/text", "vllm_text.yaml"),
        ("a/omni", "qwen3_omni_1gpu.yaml"),
        ("an/older-omni", "qwen2_5_omni_1gpu.yaml"),
        ("a/captioner", "qwen3_omni_text.yaml"),
        ("a/Thinking", "qwen3_omni_thinking.yaml"),
        ("a/reasoner", "qwen3_omni_thinking.yaml"),
        ("an/embedding", "vllm_embedding.yaml"),
        ("a/speaker", "vllm_text.yaml"),
    ],
)
def test_the_graph_of_a_hub_name(model: str, graph: str) -> None:
    assert pick_graph(model, 1).file.name == graph


@pytest.mark.parametrize(
    ("gigabytes", "num_gpus", "graph"),
    [
        (None, 1, "qwen3_omni_1gpu.yaml"),
        (141, 1, "qwen3_omni_1gpu.yaml"),
        (80, 1, "qwen3_omni_1gpu_80gb.yaml"),
        (80, 2, "qwen3_omni.yaml"),
    ],
)
def test_one_gpu_that_is_too_small_for_bfloat16_gets_a_thinker_in_fp8(
    gigabytes: int | None, num_gpus: int, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = None if gigabytes is None else gigabytes * 10**9
    monkeypatch.setattr("omnistage.stages.qwen3_omni.family.memory_bytes", lambda: memory)
    assert pick_graph("a/omni", num_gpus).file.name == graph


def test_speech_stages_that_no_graph_has_are_told() -> None:
    assert pick_graph("a/speaker", 1).note == TEXT_ONLY
    for served_whole in ("a/text", "a/omni", "an/older-omni", "a/pipeline", "a/listener"):
        assert pick_graph(served_whole, 1).note == ""


def test_a_name_without_a_model_is_told() -> None:
    with pytest.raises(
        GraphError, match=r"^there is no folder 'a/nothing' here, and .*: correct the path, or"
    ):
        pick_graph("a/nothing", 1)


def test_a_folder_that_is_not_there_is_told_without_asking_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("socket.socket.connect", pytest.fail)
    with pytest.raises(GraphError, match=r"^there is no folder /no/such/folder$"):
        pick_graph("/no/such/folder", 1)


def test_the_graph_of_qwen_image_is_that_of_any_pipeline_with_its_model() -> None:
    named = load_graph(GRAPHS / "qwen_image.yaml")
    any_pipeline = load_graph(GRAPHS / "diffusers.yaml", "Qwen/Qwen-Image")
    assert named == any_pipeline.model_copy(update={"outputs": {"image": "dit"}})
