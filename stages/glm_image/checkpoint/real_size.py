"""Writes a folder of GLM-Image at its real sizes, without weights, to serve with dummy ones."""

from pathlib import Path

from accelerate import init_empty_weights
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    GlmImagePipeline,
    GlmImageTransformer2DModel,
)
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.glm_image.checkpoint.tiny import make_processor

NUM_LATENTS = 16  # channels
REAL_SIZES = {"shortest_edge": 512**2, "longest_edge": 2048**2}  # pixels of an image to edit
GLYPHS = {"d_model": 1472, "d_kv": 64, "d_ff": 3584, "num_layers": 12, "num_heads": 6}


def write_real_glm_image(folder: Path) -> None:
    """Write configurations and a processor of one token a byte.

    The sizes of the autoregressive half are those of its class, the denoiser has 7 billion weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with init_empty_weights():
        transformer = GlmImageTransformer2DModel(num_attention_heads=32, attention_head_dim=128)
        parts = {"transformer": transformer, "vae": _vae()}
    for name, part in parts.items():
        part.save_config(folder / name)
    texts = {"text_encoder": _glyphs(), "vision_language_encoder": _prior()}
    for name, config in texts.items():
        config.save_pretrained(folder / name)
    processor = make_processor()
    processor.image_processor.size = REAL_SIZES
    scheduler = FlowMatchEulerDiscreteScheduler()
    for name, one in {
        "processor": processor,
        "tokenizer": ByT5Tokenizer(),
        "scheduler": scheduler,
    }.items():
        one.save_pretrained(folder / name)
    write_json(
        folder / GlmImagePipeline.config_name,
        {
            "_class_name": GlmImagePipeline.__name__,
            "processor": ["transformers", type(processor).__name__],
            "scheduler": ["diffusers", type(scheduler).__name__],
            "text_encoder": ["transformers", T5EncoderModel.__name__],
            "tokenizer": ["transformers", ByT5Tokenizer.__name__],
            "vision_language_encoder": ["transformers", GlmImageForConditionalGeneration.__name__],
            **{name: ["diffusers", type(part).__name__] for name, part in parts.items()},
        },
    )


def _prior() -> GlmImageConfig:
    config = GlmImageConfig(dtype="bfloat16")
    config.architectures = [GlmImageForConditionalGeneration.__name__]
    return config


def _glyphs() -> T5Config:
    config = T5Config(vocab_size=384, feed_forward_proj="gated-gelu", dtype="bfloat16", **GLYPHS)
    config.architectures = [T5EncoderModel.__name__]
    return config


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(128, 512, 1024, 1024),
        layers_per_block=3,
        latent_channels=NUM_LATENTS,
        norm_num_groups=32,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latents_mean=[0.0] * NUM_LATENTS,
        latents_std=[1.0] * NUM_LATENTS,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
