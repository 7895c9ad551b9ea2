"""A text model of a megabyte for vLLM's own classes, with random weights, and what it answers."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from omnistage.stages.checkpoint.files import generation_config, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer

GAIN = 2.5  # what attention reads still matters after layers of random weights


def write_tiny_text(folder: Path, seed: int = 0) -> None:
    """Write a Qwen3 of two layers, as small as vLLM's CPU kernels allow."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": None})
    config = Qwen3Config(
        vocab_size=tokenizer.padded_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.id("<|im_end|>"),
        pad_token_id=tokenizer.id("<|endoftext|>"),
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    fill_with_noise(model, seed)
    model.generation_config = generation_config(tokenizer)
    model.save_pretrained(folder)


@torch.no_grad()
def fill_with_noise(model: Qwen3ForCausalLM, seed: int) -> None:
    """Every weight but the norms', so that answers are not one token again and again."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 1.0 if "embed" in name else GAIN / math.sqrt(parameter.shape[1])
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def likeliest(model: Qwen3ForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that transformers' model answers, the likeliest each time."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
