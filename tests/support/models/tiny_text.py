"""A text model of a megabyte for vLLM's own classes, with random weights, and what it answers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from omnistage.stages.checkpoint.files import generation_config, write_tokenizer
from omnistage.stages.checkpoint.tiny_embedding import fill_weights
from omnistage.stages.checkpoint.tiny_text import text_settings
from omnistage.stages.checkpoint.tokenizer import make_tokenizer


def write_tiny_text(folder: Path, seed: int = 0) -> None:
    """Write a Qwen3 of two layers, as small as vLLM's CPU kernels allow."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": None})
    config = Qwen3Config(
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        **text_settings(tokenizer),
    )
    model = Qwen3ForCausalLM(config).float().eval()
    fill_weights(model, seed)
    model.generation_config = generation_config(tokenizer)
    model.save_pretrained(folder)


def likeliest(model: Qwen3ForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that transformers' model answers, the likeliest each time."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
