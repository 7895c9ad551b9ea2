"""Wan 2.2 TI2V of 5 billion weights, with random ones and a tiny encoder of texts."""

from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE
from omnistage.stages.diffusion.checkpoint.wan import make_tiny_wan

NUM_LATENTS = 48


def make_wan(*, is_tiny: bool) -> Any:
    """Return its pipeline on a GPU in bfloat16; the tiny one on a CPU."""
    pipeline = make_tiny_wan()
    pipeline.set_progress_bar_config(disable=True)
    if is_tiny:
        return pipeline
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        transformer = WanTransformer3DModel(
            num_attention_heads=24,
            attention_head_dim=128,
            in_channels=NUM_LATENTS,
            out_channels=NUM_LATENTS,
            text_dim=TEXT_SIZE,
            ffn_dim=14336,
            num_layers=30,
            cross_attn_norm=True,
        )
        vae = AutoencoderKLWan(
            base_dim=160,
            decoder_base_dim=256,
            z_dim=NUM_LATENTS,
            dim_mult=[1, 2, 4, 4],
            num_res_blocks=2,
            temperal_downsample=[False, True, True],
            is_residual=True,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
            latents_mean=[0.0] * NUM_LATENTS,
            latents_std=[1.0] * NUM_LATENTS,
        )
    torch.set_default_dtype(torch.float32)
    pipeline.register_modules(transformer=transformer.eval(), vae=vae.eval())
    pipeline.vae_scale_factor_spatial = vae.config.scale_factor_spatial
    pipeline.register_to_config(expand_timesteps=True)
    return pipeline.to("cuda", torch.bfloat16)
