"""Folders of models that see, Qwen2-VL and Qwen3-VL, without weights: what reads their videos."""

from pathlib import Path
from typing import Any

from transformers import Qwen2VLConfig, Qwen3VLConfig

from omnistage.stages.checkpoint.files import write_json, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer

VISION = {"depth": 2, "num_heads": 2, "in_channels": 3, "spatial_merge_size": 2}
# Of each: its configuration, the class of its processors, and what its encoder has.
FAMILIES: dict[str, tuple[type[Any], str, dict[str, Any]]] = {
    "qwen2_vl": (Qwen2VLConfig, "Qwen2VL", {"embed_dim": 32, "hidden_size": 64, "patch_size": 14}),
    "qwen3_vl": (
        Qwen3VLConfig,
        "Qwen3VL",
        {"hidden_size": 32, "out_hidden_size": 64, "patch_size": 16, "intermediate_size": 64},
    ),
}


def write_tiny_vision(folder: Path, family: str) -> None:
    """Write a model's configuration, tokenizer and processors."""
    folder.mkdir(parents=True, exist_ok=True)
    make_config, name, encoder = FAMILIES[family]
    tokenizer = make_tokenizer()
    text = {
        "vocab_size": tokenizer.padded_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]},
    }
    ids = {
        key: tokenizer.id(token)
        for key, token in (
            ("image_token_id", "<|image_pad|>"),
            ("video_token_id", "<|video_pad|>"),
            ("vision_start_token_id", "<|vision_start|>"),
            ("vision_end_token_id", "<|vision_end|>"),
        )
    }
    config = make_config(text_config=text, vision_config={**VISION, **encoder}, **ids)
    config.architectures = [f"{name}ForConditionalGeneration"]
    config.save_pretrained(folder)
    write_tokenizer(folder, tokenizer, {"processor_class": f"{name}Processor"})
    vision = {
        "processor_class": f"{name}Processor",
        "patch_size": encoder["patch_size"],
        "merge_size": 2,
        "temporal_patch_size": 2,
    }
    image = {**vision, "image_processor_type": "Qwen2VLImageProcessor"}
    write_json(folder / "preprocessor_config.json", image)
    video = {**vision, "video_processor_type": f"{name}VideoProcessor"}
    write_json(folder / "video_preprocessor_config.json", video)
