"""Tiny Qwen-Image pipelines of images: they read a megapixel, by a VAE of 16 pixels a latent."""

from collections.abc import Callable, Mapping
from typing import Any

from diffusers import (
    AutoencoderKLQwenImage,
    QwenImageEditPlusPipeline,
    QwenImageLayeredPipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

from omnistage.stages.diffusion.checkpoint import make_tiny

LATENT = 4
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def _coarse_vae(num_colours: int, size: int) -> AutoencoderKLQwenImage:
    """Return a VAE of 16 pixels a latent of a size: these pipelines make large pictures only."""
    return AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=size,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, False, True, True],
        latents_mean=[0.0] * size,
        latents_std=[1.0] * size,
        input_channels=num_colours,
    ).eval()


def _processor(tokenizer: Any) -> Qwen2VLProcessor:
    pixels = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT,
    )


def _qwen_image(made: Any, num_colours: int, size: int, **config: Any) -> Any:
    parts = make_tiny("qwen-image").components
    vision, text = parts["text_encoder"].config, parts["tokenizer"]
    for name in ("image", "video"):
        token = text.convert_tokens_to_ids(f"<|{name}_pad|>")
        setattr(vision, f"{name}_token_id", token)
    vision.vision_start_token_id = text.convert_tokens_to_ids("<|vision_start|>")
    sizes = parts["transformer"].config
    transformer = QwenImageTransformer2DModel.from_config(sizes, **config).eval()
    more = {"vae": _coarse_vae(num_colours, size), "processor": _processor(text)}
    return made(**{**parts, **more, "transformer": transformer})


def make_edit_plus() -> QwenImageEditPlusPipeline:
    """Qwen-Image of several pictures."""
    return _qwen_image(QwenImageEditPlusPipeline, 3, LATENT)


def make_layered() -> QwenImageLayeredPipeline:
    """Qwen-Image of layers with alpha."""
    size = 2 * LATENT  # a picture of four channels would be taken for latents of four
    sizes = {"in_channels": 4 * size, "out_channels": size}
    config = {"use_additional_t_cond": True, "use_layer3d_rope": True, **sizes}
    return _qwen_image(QwenImageLayeredPipeline, 4, size, **config)


CLASSES: Mapping[type, Callable[[], Any]] = {QwenImageEditPlusPipeline: make_edit_plus}
