"""Writes a complete Qwen3-Omni checkpoint of about a megabyte, with random weights."""

from pathlib import Path

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer
from omnistage.stages.qwen3_omni.checkpoint.processors import TINY
from omnistage.stages.qwen3_omni.checkpoint.tiny_config import make_config
from omnistage.stages.qwen3_omni.checkpoint.tiny_weights import fill_with_noise


def write_tiny_checkpoint(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint of this seed into a folder, in Hugging Face layout.

    Its weights are bfloat16, as the real ones are; loaded as float32 they are exact everywhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer)
    write_json(folder / "preprocessor_config.json", TINY.image_and_audio())
    write_json(folder / "video_preprocessor_config.json", TINY.video())
    model = Qwen3OmniMoeForConditionalGeneration(make_config(tokenizer)).float().eval()
    fill_with_noise(model, tokenizer, seed)
    model.generation_config = generation_config(tokenizer)
    model.to(torch.bfloat16).save_pretrained(folder)
