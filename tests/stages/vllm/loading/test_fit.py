"""What is counted of an engine before vLLM starts it: never more than it needs."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2Model, Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.device.memory import GIB
from omnistage.stages.device.start import DoesNotFit
from omnistage.stages.qwen3_omni.talker import TALKER
from omnistage.stages.qwen3_omni.thinker import THINKER
from omnistage.stages.vllm.loading import fit
from omnistage.stages.vllm.loading.fit import (
    WHOLE,
    ModelPart,
    check_fit,
    largest_stack,
    layer_bytes,
)

SMALL = Qwen2Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    Qwen2Model(SMALL).save_pretrained(folder)
    return folder


def layers_of(model: Any) -> int:
    return sum(weight.numel() for weight in model.layers.parameters())


def config(model: Path, text: Any = SMALL, kv_bytes: int | None = None, **parallel: int) -> Any:
    """What is read of vLLM's."""
    sizes = dict.fromkeys(
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1
    )
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model), revision=None, dtype=torch.bfloat16, seed=5, hf_text_config=text
        ),
        parallel_config=SimpleNamespace(**{**sizes, **parallel}),
        cache_config=SimpleNamespace(kv_cache_memory_bytes=kv_bytes),
    )


@pytest.mark.parametrize("options", [{}, {"load_format": "auto"}, {"load_format": "dummy"}])
def test_layers_count_in_the_dtype_of_the_engine(options: dict[str, Any], small: Path) -> None:
    """Its files are float32."""
    assert layer_bytes(config(small), options, WHOLE) == 2 * layers_of(Qwen2Model(SMALL))


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "fp8"},
        {"cpu_offload_gb": 1},
        {"offload_group_size": 2},
        {"load_format": "bitsandbytes"},
    ],
)
def test_what_makes_weights_smaller_leaves_them_uncounted(
    options: dict[str, Any], small: Path
) -> None:
    assert layer_bytes(config(small), options, WHOLE) == 0


def test_layers_are_shared_by_parallel_devices(small: Path) -> None:
    whole = layer_bytes(config(small), {}, WHOLE)
    shared = config(small, tensor_parallel_size=2, data_parallel_size=2)
    assert layer_bytes(shared, {}, WHOLE) == whole // 4
    assert layer_bytes(config(small, pipeline_parallel_size=2), {}, WHOLE) == 0


def test_a_model_whose_layers_are_not_found_is_not_counted(small: Path, tmp_path: Path) -> None:
    assert layer_bytes(config(tmp_path), {}, WHOLE) == 0
    assert layer_bytes(config(Path("no-such/model")), {}, WHOLE) == 0
    assert layer_bytes(config(Path("/a/file/of/a/model.gguf")), {}, WHOLE) == 0
    assert layer_bytes(config(small, text=SimpleNamespace()), {}, WHOLE) == 0
    unknown = SimpleNamespace(num_hidden_layers=3)
    assert layer_bytes(config(small, text=unknown), {"load_format": "dummy"}, WHOLE) == 0


def test_fewer_layers_than_the_files_have_count_as_fewer(small: Path) -> None:
    one = SimpleNamespace(num_hidden_layers=1)
    assert layer_bytes(config(small, one), {}, WHOLE) == 2 * layers_of(Qwen2Model(SMALL)) // 3


def test_only_the_largest_stack_counts_and_only_its_layers() -> None:
    sizes = [
        ("model.embed_tokens.weight", 1000),
        ("model.layers.0.mlp.experts.7.weight", 30),
        ("model.layers.1.mlp.weight", 30),
        ("model.layers.2.eh_proj.weight", 500),  # predicts a second token
        ("visual.blocks.0.weight", 50),
        ("layers.0.weight", 20),
    ]
    assert largest_stack(sizes, num_layers=2) == 60
    assert largest_stack([], num_layers=2) == 0


@pytest.mark.parametrize(
    ("part", "owner"), [(THINKER, "thinker.model"), (TALKER, "talker.model")], ids=["a", "b"]
)
@pytest.mark.parametrize("options", [{}, {"load_format": "dummy"}])
def test_the_stages_of_qwen3_omni_count_their_own_layers(
    part: ModelPart, owner: str, options: dict[str, Any], tiny_checkpoint: Path
) -> None:
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny_checkpoint)
    text = model.get_submodule(owner)
    counted = layer_bytes(config(tiny_checkpoint, text.config), options, part)
    assert counted == 2 * layers_of(text)


def test_weights_that_an_engine_leaves_out_are_not_counted(tiny_bagel: Path) -> None:
    text = Qwen2Config(**json.loads((tiny_bagel / "llm_config.json").read_text()))
    weights = load_file(tiny_bagel / "ema.safetensors")
    prefix, without = "language_model.model.", "_moe_gen"
    own = sum(
        one.numel()
        for name, one in weights.items()
        if name.startswith(f"{prefix}layers.") and without not in name
    )
    part = ModelPart(prefix, without=without)
    assert layer_bytes(config(tiny_bagel, text), {}, part) == 2 * own


def test_the_line_has_all_that_is_decided_before_the_load(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fit, "host_free_bytes", lambda: 4 * GIB)
    caplog.set_level(logging.INFO)
    check_fit("text", config(small, kv_bytes=GIB), {})
    (line,) = caplog.messages
    said = "cpu, bfloat16, seed 5; at least 1.00 GiB wanted (layers 0.00, KV cache 1.00), 4.00 GiB "
    assert line == f"stage text: {said}free"


def test_a_cache_beyond_the_memory_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layer_bytes(config(small), {}, WHOLE)
    monkeypatch.setattr(fit, "host_free_bytes", lambda: GIB + layers)
    check_fit("text", config(small, kv_bytes=GIB), {})
    with pytest.raises(DoesNotFit, match=r"^stage text does not fit .* lower kv_cache_memory_byte"):
        check_fit("text", config(small, kv_bytes=GIB + 1), {})


def test_a_share_of_the_memory_is_left_to_vllm(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gpu_memory_utilization` without a size of the cache: only the layers have to be there."""
    monkeypatch.setattr(fit, "host_free_bytes", lambda: layer_bytes(config(small), {}, WHOLE))
    check_fit("text", config(small), {})
