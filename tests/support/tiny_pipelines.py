"""Diffusers pipelines of random weights, tiny, and requests for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)

from omnistage.stages.diffusion.tiny import TEXT_SIZE, make_tiny_qwen_image

Arguments = dict[str, Any]


@dataclass(frozen=True)
class TinyPipeline:
    """How to make one, and the arguments of request number n: seed, steps, guidance."""

    make: Callable[[], Any]
    request: Callable[[int, int, float], Arguments]


def embeddings(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def common(seed: int, num_steps: int) -> Arguments:
    return {
        "height": 64,
        "width": 64,
        "num_inference_steps": num_steps,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": "pt",
    }


def small_vae(channels: int) -> AutoencoderKL:
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=channels,
        sample_size=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=1.0,
    )


def qwen_image() -> Any:
    torch.manual_seed(0)
    return make_tiny_qwen_image()


def qwen_image_request(seed: int, num_steps: int, guidance: float) -> Arguments:
    length = 5 + seed % 3
    return {
        **common(seed, num_steps),
        "prompt_embeds": embeddings(seed, 1, length, TEXT_SIZE),
        "prompt_embeds_mask": torch.ones(1, length, dtype=torch.long),
        "negative_prompt_embeds": embeddings(seed + 100, 1, length, TEXT_SIZE),
        "negative_prompt_embeds_mask": torch.ones(1, length, dtype=torch.long),
        "true_cfg_scale": guidance,
    }


def flux() -> Any:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    scheduler = FlowMatchEulerDiscreteScheduler()
    return FluxPipeline(scheduler, small_vae(4).eval(), None, None, None, None, transformer.eval())


def flux_request(seed: int, num_steps: int, guidance: float) -> Arguments:
    return {
        **common(seed, num_steps),
        "prompt_embeds": embeddings(seed, 1, 6, 32),
        "pooled_prompt_embeds": embeddings(seed + 100, 1, 32),
        "guidance_scale": guidance,
    }


def sd3() -> Any:
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=1,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
    )
    scheduler = FlowMatchEulerDiscreteScheduler()
    vae = small_vae(4).eval()
    return StableDiffusion3Pipeline(
        transformer.eval(), scheduler, vae, None, None, None, None, None, None
    )


def sd3_request(seed: int, num_steps: int, guidance: float) -> Arguments:
    return {
        **common(seed, num_steps),
        "height": 32,
        "width": 32,
        "prompt_embeds": embeddings(seed, 1, 6, 32),
        "negative_prompt_embeds": embeddings(seed + 100, 1, 6, 32),
        "pooled_prompt_embeds": embeddings(seed + 200, 1, 64),
        "negative_pooled_prompt_embeds": embeddings(seed + 300, 1, 64),
        "guidance_scale": guidance,
    }


PIPELINES = {
    "qwen-image": TinyPipeline(qwen_image, qwen_image_request),
    "flux": TinyPipeline(flux, flux_request),
    "sd3": TinyPipeline(sd3, sd3_request),
}
