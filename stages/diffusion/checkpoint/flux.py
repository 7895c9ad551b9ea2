"""A tiny Flux."""

from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from omnistage.stages.diffusion.checkpoint.parts import (
    CLIP_LENGTH,
    TEXT_SIZE,
    make_clip,
    make_t5,
    make_tokenizer,
    make_vae,
)


def make_tiny_flux() -> FluxPipeline:
    """The pipeline with the real one's parts, each as small as it can be."""
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=TEXT_SIZE,
        pooled_projection_dim=TEXT_SIZE,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    return FluxPipeline(
        FlowMatchEulerDiscreteScheduler(),
        make_vae(),
        make_clip(),
        make_tokenizer(CLIP_LENGTH),
        make_t5(),
        make_tokenizer(),
        transformer.eval(),
    )
