"""All of Qwen-Image but its weights, at its real sizes: a folder to serve with dummy weights."""

from pathlib import Path

from accelerate import init_empty_weights
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from omnistage.stages.checkpoint import real_tokenizer
from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.diffusion.checkpoint.parts import make_tokenizer
from omnistage.stages.diffusion.checkpoint.qwen_image import qwen_image_scheduler

MAX_TOKENS = 131072
TEXT_MODEL = Qwen2_5_VLForConditionalGeneration


def write_real_qwen_image(folder: Path) -> None:
    """Configurations, scheduler and a tokenizer of one token a byte."""
    folder.mkdir(parents=True, exist_ok=True)
    with init_empty_weights():
        parts = {"transformer": QwenImageTransformer2DModel(), "vae": AutoencoderKLQwenImage()}
    for name, part in parts.items():
        part.save_config(folder / name)
    text = _text_config()
    text.architectures = [TEXT_MODEL.__name__]
    text.save_pretrained(folder / "text_encoder")
    tokenizer = make_tokenizer(MAX_TOKENS, real_tokenizer.make_tokenizer())
    tokenizer.save_pretrained(folder / "tokenizer")
    qwen_image_scheduler().save_pretrained(folder / "scheduler")
    write_json(
        folder / QwenImagePipeline.config_name,
        {
            "_class_name": QwenImagePipeline.__name__,
            "scheduler": ["diffusers", FlowMatchEulerDiscreteScheduler.__name__],
            "text_encoder": ["transformers", TEXT_MODEL.__name__],
            "tokenizer": ["transformers", type(tokenizer).__name__],
            **{name: ["diffusers", type(part).__name__] for name, part in parts.items()},
        },
    )


def _text_config() -> Qwen2_5_VLConfig:
    """Qwen2.5-VL-7B."""
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [16, 24, 24],
            },
            "bos_token_id": 151643,
            "eos_token_id": 151645,
        },
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
            "patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2,
        },
        vision_start_token_id=151652,
        vision_end_token_id=151653,
        image_token_id=151655,
        video_token_id=151656,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
