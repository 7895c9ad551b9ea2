"""MammothModa2 at its real sizes: what its graph is checked and planned with.

The published checkpoint was not seen: its language model is a Qwen3-VL of 8 billion weights, and
its networks for images have 3 billion, as its authors say.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate import init_empty_weights
from support.models.real_sizes import (
    BYTES,
    GIB,
    GPU_GIB,
    check_graph_is_accepted,
    copy_without_weights,
    num_weights,
    token_bytes,
)
from transformers import Qwen3VLForConditionalGeneration

from omnistage.stage_configs.json_types import Json
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.checkpoint.files import read_json, write_json
from omnistage.stages.mammothmoda2.model_config import ImageIdsConfig, MammothModa2Config
from omnistage.stages.mammothmoda2.words_folder import qwen3_vl_config

GRAPH = GRAPHS / "mammothmoda2.yaml"
IMAGE_TOKENS = 1057  # of 1024 x 1024 pixels
PROMPT_TOKENS = 900  # beside which the graph has room for 8 images
DENOISER_GIB = 4 + 0.2 + 20  # weights, by what its authors say, VAE, and what it computes with
IDS = {"gen_vocab_start_index": 152_064, "gen_vocab_size": 32_800, "moe_type": "ffn-16:36"}
TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
}
VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}


@pytest.fixture(scope="module")
def folder(tiny_mammothmoda2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mammothmoda2") / "real"
    copy_without_weights(tiny_mammothmoda2, folder)
    config = read_json(folder / "config.json")
    llm = config["llm_config"]
    llm |= IDS
    llm["text_config"] |= TEXT | IDS
    llm["vision_config"] |= VISION
    write_json(folder / "config.json", config)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Json:
    found: Json = read_json(folder / "config.json")["llm_config"]
    return found


@pytest.fixture(scope="module")
def engines() -> Any:
    stages = yaml.safe_load(GRAPH.read_text())["stages"]
    return {name: stage["engine"] for name, stage in stages.items()}


def weights_gib(llm: Json) -> dict[str, float]:
    """Return what the weights of each stage of the language model take."""
    with init_empty_weights():
        model: Any = Qwen3VLForConditionalGeneration(qwen3_vl_config(llm))
    parts = {"all": model, "head": model.lm_head, "text": model.model.language_model}
    num = {name: num_weights(part) for name, part in parts.items()}
    made = image_ids_config(llm)
    networks = 3 * made.hidden_size * made.intermediate_size * len(made.generation_layers)
    tables = 2 * made.hidden_size * llm["gen_vocab_size"]
    weights = {"words": num["all"], "image_ids": num["text"] + networks + tables}
    return {name: count * BYTES / GIB for name, count in weights.items()}


def image_ids_config(llm: Json) -> Any:
    """Return what vLLM gets, whose heads are pairs."""
    whole = MammothModa2Config(llm_config=llm)
    return ImageIdsConfig(first_id=0, line_end=0, image_end=0, guidance=1.0)(whole)


def test_the_sizes_are_those_of_the_graphs_memory(llm: Json, engines: Any) -> None:
    """What the graph file's words count for its GPU, by our configurations of each engine."""
    weights = weights_gib(llm)
    assert {name: round(one, 1) for name, one in weights.items()} == {
        "words": 16.3,
        "image_ids": 20.2,
    }
    each = {
        "words": token_bytes(qwen3_vl_config(llm).text_config),
        "image_ids": token_bytes(image_ids_config(llm)),
    }
    assert {name: one / 1024 for name, one in each.items()} == {"words": 144, "image_ids": 360}
    caches = {name: engines[name]["kv_cache_memory_bytes"] for name in each}
    assert caches["words"] == 32_768 * each["words"]
    assert caches["image_ids"] >= 8 * (PROMPT_TOKENS + IMAGE_TOKENS) * each["image_ids"]
    for name, weight in weights.items():
        share = engines[name]["gpu_memory_utilization"] * GPU_GIB
        assert weight + caches[name] / GIB < share, name
    denoiser = GPU_GIB - sum(engines[name]["gpu_memory_utilization"] for name in each) * GPU_GIB
    assert denoiser > DENOISER_GIB


@pytest.mark.parametrize("command", ["check", "plan"])
def test_its_graph_is_accepted(command: str, folder: Path) -> None:
    kinds = "mammothmoda2.words", "mammothmoda2.image_ids", "diffusers"
    check_graph_is_accepted(command, GRAPH, folder, *kinds)
