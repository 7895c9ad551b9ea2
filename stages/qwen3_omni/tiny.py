"""Writes a complete Qwen3-Omni checkpoint of about a megabyte, with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.qwen3_omni.tiny_config import make_config
from omnistage.stages.qwen3_omni.tiny_processors import image_and_audio_config, video_config
from omnistage.stages.qwen3_omni.tiny_tokenizer import (
    CHAT_TEMPLATE,
    TinyTokenizer,
    make_tokenizer,
)
from omnistage.stages.qwen3_omni.tiny_weights import fill_with_noise


def write_tiny_checkpoint(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint of this seed into a folder, in Hugging Face layout.

    Its weights are bfloat16, as the real ones are; loaded as float32 they are exact everywhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    _write_tokenizer(folder, tokenizer)
    _write_json(folder / "preprocessor_config.json", image_and_audio_config())
    _write_json(folder / "video_preprocessor_config.json", video_config())
    model = Qwen3OmniMoeForConditionalGeneration(make_config(tokenizer)).float().eval()
    fill_with_noise(model, tokenizer, seed)
    model.generation_config = _generation_config(tokenizer)
    model.to(torch.bfloat16).save_pretrained(folder)


def _write_tokenizer(folder: Path, tokenizer: TinyTokenizer) -> None:
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer.config)
    # transformers reads the first of the two, vLLM the second.
    _write_json(folder / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _generation_config(tokenizer: TinyTokenizer) -> GenerationConfig:
    return GenerationConfig(
        eos_token_id=[tokenizer.id("<|im_end|>"), tokenizer.id("<|endoftext|>")],
        pad_token_id=tokenizer.id("<|endoftext|>"),
        do_sample=False,
    )
