"""A tiny Qwen3 with random weights that answers chats with short sentences."""

import math
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from omnistage.stage_configs.json_types import Json
from omnistage.stages.checkpoint.files import generation_config, write_tokenizer
from omnistage.stages.checkpoint.random_weights import let_sentences_end
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer, make_tokenizer

HIDDEN_SIZE = 64
# Above 1, so that what attention reads still matters after layers of random weights.
_GAIN = 2.5
# What it writes back is kept low, so that the newest token stays visible in the last layer.
_OUTPUT_GAIN = 1.5
_AS_THEY_ARE = ("embed_tokens", "lm_head")


def write_tiny_text(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint of this seed into a folder, in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": None})
    model = Qwen3ForCausalLM(text_config(tokenizer)).float().eval()
    fill_with_noise(model, seed)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        let_sentences_end(model.lm_head.weight, embedding, tokenizer.id("<|im_end|>"), 1.6)
    model.generation_config = generation_config(tokenizer)
    model.to(torch.bfloat16).save_pretrained(folder)


def text_config(tokenizer: TinyTokenizer) -> Qwen3Config:
    """Return the configuration of a text model, as small as vLLM's CPU kernels allow."""
    return Qwen3Config(
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        **text_settings(tokenizer),
    )


def text_settings(tokenizer: TinyTokenizer) -> Json:
    """Return the settings that all tiny Qwen3 share: their widths and the tokenizer's ids."""
    return {
        "vocab_size": tokenizer.padded_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 96,
        "head_dim": 32,
        "eos_token_id": tokenizer.id("<|im_end|>"),
        "pad_token_id": tokenizer.id("<|endoftext|>"),
    }


@torch.no_grad()
def fill_with_noise(model: torch.nn.Module, seed: int) -> None:
    """Give every parameter its value for this seed: norms near 1, biases near 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            is_norm = name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.1 * noise)
        else:
            parameter.copy_(_scale_of(name, parameter) * noise)


def _scale_of(name: str, parameter: torch.Tensor) -> float:
    """Return the standard deviation of a weight."""
    if any(part in name for part in _AS_THEY_ARE):
        return 1.0
    gain = _OUTPUT_GAIN if "o_proj" in name or "down_proj" in name else _GAIN
    return gain / math.sqrt(parameter[0].numel())
