"""A draft model for the tiny Qwen3-Omni: its thinker's text model, which sees no media."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig

from omnistage.stages.checkpoint.files import write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer

PREFIX = "thinker."
PARTS = ("model.", "lm_head.")
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_experts"),
    *("num_experts_per_tok", "norm_topk_prob", "max_position_embeddings", "rms_norm_eps"),
    *("decoder_sparse_step", "mlp_only_layers", "hidden_act", "tie_word_embeddings"),
)


def write_draft_model(folder: Path, omni: Path) -> None:
    """Write a Qwen3-MoE with the weights of `omni`'s thinker, and positions in one dimension."""
    folder.mkdir(parents=True)
    write_tokenizer(folder, make_tokenizer(), {"processor_class": None})
    text = json.loads((omni / "config.json").read_text())["thinker_config"]["text_config"]
    sizes = {name: text[name] for name in SIZES}
    rope = {"rope_type": "default", "rope_theta": text["rope_parameters"]["rope_theta"]}
    config = Qwen3MoeConfig(**sizes, rope_parameters=rope, dtype="float32")
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.save_pretrained(folder)
    weights: dict[str, torch.Tensor] = {}
    for file in omni.glob("*.safetensors"):
        for name, weight in load_file(file).items():
            if name.removeprefix(PREFIX).startswith(PARTS) and name.startswith(PREFIX):
                weights[name.removeprefix(PREFIX)] = weight
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
