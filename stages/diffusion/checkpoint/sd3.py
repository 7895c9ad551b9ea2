"""A tiny Stable Diffusion 3."""

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)

from omnistage.stages.diffusion.checkpoint.parts import (
    CLIP_LENGTH,
    TEXT_SIZE,
    make_clip,
    make_t5,
    make_tokenizer,
    make_vae,
)

JOINT_SIZE = 2 * TEXT_SIZE  # both CLIPs' states side by side


def make_tiny_sd3() -> StableDiffusion3Pipeline:
    """The pipeline with the real one's parts, each as small as it can be."""
    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=1,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=JOINT_SIZE,
        caption_projection_dim=32,
        pooled_projection_dim=2 * TEXT_SIZE,
        out_channels=4,
    )
    return StableDiffusion3Pipeline(
        transformer.eval(),
        FlowMatchEulerDiscreteScheduler(),
        make_vae(),
        make_clip(with_projection=True),
        make_tokenizer(CLIP_LENGTH),
        make_clip(with_projection=True),
        make_tokenizer(CLIP_LENGTH),
        make_t5(JOINT_SIZE),
        make_tokenizer(),
    )
