"""Writes a complete Qwen3-Omni checkpoint of about a megabyte, with random weights."""

from pathlib import Path

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import (
    CHAT_TEMPLATE,
    THINKING_TEMPLATE,
    make_tokenizer,
)
from omnistage.stages.qwen3_omni.checkpoint.processors import TINY
from omnistage.stages.qwen3_omni.checkpoint.tiny_config import EXPERT_SIZE, make_config
from omnistage.stages.qwen3_omni.checkpoint.tiny_weights import fill_with_noise, let_thoughts_end


def write_tiny_checkpoint(folder: Path, seed: int = 0, expert_size: int = EXPERT_SIZE) -> None:
    """Write the checkpoint of this seed into a folder, in Hugging Face layout.

    Its weights are bfloat16, as the real ones are; loaded as float32 they are exact everywhere.
    vLLM's experts on a CPU have a width of a multiple of 32 in each tensor-parallel rank.
    """
    _write(folder, seed, CHAT_TEMPLATE, has_talker=True, expert_size=expert_size)


def write_tiny_thinking(folder: Path, seed: int = 0) -> None:
    """Write one without a talker, whose answers begin with a thought."""
    _write(folder, seed, THINKING_TEMPLATE, has_talker=False)


def write_tiny_captioner(folder: Path, seed: int = 0) -> None:
    """Write one without a talker."""
    _write(folder, seed, CHAT_TEMPLATE, has_talker=False)


def _write(
    folder: Path, seed: int, template: str, has_talker: bool, expert_size: int = EXPERT_SIZE
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, template=template)
    write_json(folder / "preprocessor_config.json", TINY.image_and_audio())
    write_json(folder / "video_preprocessor_config.json", TINY.video())
    config = make_config(tokenizer, has_talker, expert_size)
    model = Qwen3OmniMoeForConditionalGeneration(config).float().eval()
    fill_with_noise(model, tokenizer, seed)
    if template == THINKING_TEMPLATE:
        let_thoughts_end(model, tokenizer)
    model.generation_config = generation_config(tokenizer)
    model.to(torch.bfloat16).save_pretrained(folder)
