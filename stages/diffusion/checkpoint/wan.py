"""A tiny Wan: videos."""

from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import UMT5Config, UMT5EncoderModel

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE, make_tokenizer, t5_sizes

NUM_CHANNELS = 4


def make_tiny_wan() -> WanPipeline:
    """The pipeline with the real one's parts, each as small as it can be."""
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=NUM_CHANNELS,
        out_channels=NUM_CHANNELS,
        text_dim=TEXT_SIZE,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        rope_max_seq_len=128,
    )
    vae = AutoencoderKLWan(
        base_dim=16,
        z_dim=NUM_CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * NUM_CHANNELS,
        latents_std=[1.0] * NUM_CHANNELS,
    )
    return WanPipeline(
        tokenizer=make_tokenizer(),
        text_encoder=UMT5EncoderModel(UMT5Config(**t5_sizes(TEXT_SIZE))).eval(),
        vae=vae.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=transformer.eval(),
    )
