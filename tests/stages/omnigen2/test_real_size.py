"""OmniGen2 at its real sizes: what its graph is checked and planned with."""

from pathlib import Path

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
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.checkpoint.files import read_json, write_json
from omnistage.stages.lumina2.transformer import OmniGen2Transformer2DModel

GRAPH = GRAPHS / "omnigen2.yaml"
COMPUTING_GIB = 20.2  # the VAE, and what the denoiser computes with, as the graph file says
TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
}
VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 2048,
}
DENOISER = {
    "hidden_size": 2520,
    "num_layers": 32,
    "num_refiner_layers": 2,
    "num_attention_heads": 21,
    "num_kv_heads": 7,
    "multiple_of": 256,
    "axes_dim_rope": (40, 40, 40),
    "axes_lens": (1024, 1664, 1664),
    "text_feat_dim": 2048,
}


@pytest.fixture(scope="module")
def folder(tiny_omnigen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("omnigen2") / "real"
    copy_without_weights(tiny_omnigen2, folder)
    file = folder / "transformer" / "config.json"
    write_json(file, read_json(file) | DENOISER)
    return folder


def test_the_sizes_are_those_of_the_graphs_memory() -> None:
    """What the graph file's words count for its GPU: the mllm is a Qwen2.5-VL of 3 billion."""
    config = Qwen2_5_VLConfig(text_config=TEXT, vision_config=VISION)
    with init_empty_weights():
        mllm = Qwen2_5_VLModel(config)  # its head has the weights of its embeddings
        denoiser = OmniGen2Transformer2DModel(**DENOISER)
    weights = num_weights(mllm) * BYTES / GIB, num_weights(denoiser) * BYTES / GIB
    assert [round(one, 1) for one in weights] == [7.0, 7.4]
    engine = yaml.safe_load(GRAPH.read_text())["stages"]["mllm"]["engine"]
    each, cache = token_bytes(config.text_config), engine["kv_cache_memory_bytes"]
    assert each == 36 * 1024
    assert cache == engine["max_num_seqs"] * engine["max_model_len"] * each
    share = engine["gpu_memory_utilization"] * GPU_GIB
    assert weights[0] + cache / GIB < share
    assert weights[1] + COMPUTING_GIB < GPU_GIB - share


@pytest.mark.parametrize("command", ["check", "plan"])
def test_its_graph_is_accepted(command: str, folder: Path) -> None:
    check_graph_is_accepted(command, GRAPH, folder, "omnigen2.mllm", "diffusers")
