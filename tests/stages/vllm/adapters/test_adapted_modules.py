"""An adapter with weights that vLLM would ignore is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora_folders import write_lora_folder
from vllm.model_executor.models.utils import WeightsMapper

from omnistage.stages.vllm.adapters.adapted_modules import refuse_ignored

LAYER = "language_model.model.layers.1"
# As vLLM's manager names them: the layers that take adapters, and the parts of those that it packs.
MODULES = [f"{LAYER}.self_attn.qkv_proj", f"{LAYER}.mlp.experts", "language_model.lm_head"]
PACKED = {MODULES[0]: [f"{LAYER}.self_attn.{one}_proj" for one in "qkv"]}
MAPPER = WeightsMapper(
    orig_to_new_prefix={"thinker.model.": "language_model.model.", "talker.": None},
    orig_to_new_stacked={".q_proj": (".qkv_proj", "q")},
)


def model(mapper: Any = MAPPER) -> Any:
    manager = SimpleNamespace(modules=dict.fromkeys(MODULES), packed_modules=PACKED)
    return SimpleNamespace(lora_manager=manager, hf_to_vllm_mapper=mapper)


@pytest.mark.parametrize(
    "module",
    [
        "thinker.model.layers.1.self_attn.q_proj",  # by transformers' name
        f"{LAYER}.self_attn.v_proj",
        "language_model.model.layers.7.self_attn.k_proj",  # another rank of a pipeline has it
        f"{LAYER}.mlp.experts.3.gate_proj",
        f"{LAYER}.mlp.experts.base_layer",
        "language_model.lm_head",
    ],
)
def test_what_a_layer_takes_is_taken(module: str, tmp_path: Path) -> None:
    refuse_ignored(model(), write_lora_folder(tmp_path, module))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.q_proj"),
        ("thinker.model.layers.1.mlp.gate", f"{LAYER}.mlp.gate"),
        ("audio_tower.layers.1.self_attn.q_proj", "audio_tower.layers.1.self_attn.q_proj"),
        ("lm_head", "lm_head"),
        ("talker.layers.1.self_attn.q_proj", "talker.layers.1.self_attn.q_proj"),
    ],
)
def test_what_no_layer_takes_is_refused(module: str, name: str, tmp_path: Path) -> None:
    folder = write_lora_folder(tmp_path, module)
    with pytest.raises(ValueError, match=f"^vLLM does not adapt {name} in this model$"):
        refuse_ignored(model(), folder)


def test_a_model_without_a_mapper_has_its_own_names(tmp_path: Path) -> None:
    refuse_ignored(model(None), write_lora_folder(tmp_path, f"{LAYER}.self_attn.q_proj"))
    with pytest.raises(ValueError, match=r"does not adapt thinker\.model"):
        refuse_ignored(model(None), write_lora_folder(tmp_path, "thinker.model.layers.1.q_proj"))
