"""Small sizes of the components of image pipelines, by class."""

from collections.abc import Mapping
from typing import Any

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE

Sizes = Mapping[str, Any]
LATENT = 4  # channels
GLM_IDS = 64
PACKED = 4 * LATENT  # of 2 x 2 latents as one
HEADS = {"attention_head_dim": 16, "num_attention_heads": 2}
ROPE = (4, 4, 8)
# Of flow models whose latents are packed.
FLUX = {
    **HEADS,
    "in_channels": PACKED,
    "num_layers": 1,
    "num_single_layers": 1,
    "joint_attention_dim": TEXT_SIZE,
    "axes_dims_rope": ROPE,
}
POOLED = {"pooled_projection_dim": TEXT_SIZE, "guidance_embeds": True}
SD3 = {
    "sample_size": 32,
    "patch_size": 1,
    "in_channels": LATENT,
    "out_channels": LATENT,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": 2 * TEXT_SIZE,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 2 * TEXT_SIZE,
}
SANA = {
    "in_channels": LATENT,
    "out_channels": LATENT,
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": TEXT_SIZE,
}
HUNYUAN_DIT = {
    "sample_size": 16,
    "patch_size": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 3,
    "in_channels": LATENT,
    "cross_attention_dim": TEXT_SIZE,
    "cross_attention_dim_t5": TEXT_SIZE,
    "pooled_projection_dim": 16,
    "hidden_size": 24,
    "activation_fn": "gelu-approximate",
}
Z_IMAGE = {"dim": 32, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2}
QWEN = {
    **HEADS,
    "num_attention_heads": 4,
    "patch_size": 2,
    "in_channels": PACKED,
    "out_channels": LATENT,
    "joint_attention_dim": TEXT_SIZE,
    "axes_dims_rope": (8, 4, 4),
}

IMAGE_SIZES: Mapping[str, Sizes] = {
    "AuraFlowTransformer2DModel": {
        "sample_size": 32,
        "in_channels": LATENT,
        "num_mmdit_layers": 1,
        "num_single_dit_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "joint_attention_dim": TEXT_SIZE,
        "caption_projection_dim": 32,
        "pos_embed_max_size": 256,
    },
    "BriaTransformer2DModel": {**FLUX},
    "ChromaTransformer2DModel": {
        **FLUX,
        "approximator_num_channels": 8,
        "approximator_hidden_dim": 32,
        "approximator_layers": 1,
    },
    "CogView3PlusTransformer2DModel": {
        "in_channels": LATENT,
        "out_channels": LATENT,
        "num_layers": 1,
        **HEADS,
        "text_embed_dim": TEXT_SIZE,
        "time_embed_dim": 8,
        "condition_dim": 2,
        "pos_embed_max_size": 32,
        "sample_size": 16,
    },
    "CogView4Transformer2DModel": {
        "in_channels": LATENT,
        "out_channels": LATENT,
        "num_layers": 1,
        **HEADS,
        "text_embed_dim": TEXT_SIZE,
        "time_embed_dim": 8,
        "condition_dim": 4,
        "pos_embed_max_size": 32,
        "sample_size": 16,
        "rope_axes_dim": (8, 8),
    },
    "Flux2Transformer2DModel": {
        **FLUX,
        "in_channels": 4,
        "timestep_guidance_channels": 256,
        "axes_dims_rope": (4, 4, 4, 4),
        "guidance_embeds": False,
    },
    "FluxControlNetModel": {**FLUX, **POOLED},
    "FluxTransformer2DModel": {**FLUX, **POOLED},
    "HunyuanDiT2DControlNetModel": {**HUNYUAN_DIT, "transformer_num_layers": 4},
    "HunyuanDiT2DModel": {**HUNYUAN_DIT, "num_layers": 4},
    "GlmImageTransformer2DModel": {
        "in_channels": LATENT,
        "out_channels": LATENT,
        "num_layers": 2,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "text_embed_dim": TEXT_SIZE,
        "time_embed_dim": 16,
        "condition_dim": 8,
        "prior_vq_quantizer_codebook_size": GLM_IDS,
    },
    "HiDreamImageTransformer2DModel": {
        "patch_size": 2,
        "in_channels": LATENT,
        "out_channels": LATENT,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "caption_channels": [TEXT_SIZE, TEXT_SIZE],
        "text_emb_dim": 2 * TEXT_SIZE,
        "axes_dims_rope": (4, 2, 2),
        "max_resolution": (32, 32),
        "llama_layers": (0, 1),
    },
    "Lumina2Transformer2DModel": {
        "sample_size": 16,
        "in_channels": LATENT,
        "hidden_size": 24,
        "num_layers": 2,
        "num_refiner_layers": 1,
        "num_attention_heads": 3,
        "num_kv_heads": 1,
        "multiple_of": 2,
        "axes_dim_rope": (4, 2, 2),
        "axes_lens": (512, 64, 64),
        "cap_feat_dim": TEXT_SIZE,
    },
    "LuminaNextDiT2DModel": {
        "sample_size": 16,
        "hidden_size": 24,
        "num_layers": 2,
        "num_attention_heads": 3,
        "num_kv_heads": 1,
        "multiple_of": 16,
        "cross_attention_dim": TEXT_SIZE,
    },
    "OvisImageTransformer2DModel": {**FLUX, "out_channels": PACKED},
    "PRXTransformer2DModel": {
        "in_channels": LATENT,
        "context_in_dim": TEXT_SIZE,
        "hidden_size": 32,
        "num_heads": 2,
        "depth": 1,
        "axes_dim": [8, 8],
    },
    "PixArtTransformer2DModel": {
        "sample_size": 16,
        "num_layers": 3,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "caption_channels": TEXT_SIZE,
        "cross_attention_dim": 16,
    },
    "QwenImageControlNetModel": {**QWEN, "num_layers": 1},
    "QwenImageTransformer2DModel": {**QWEN, "num_layers": 2},
    "SD3ControlNetModel": SD3,
    "SD3Transformer2DModel": SD3,
    "SanaControlNetModel": {**SANA, "sample_size": 16},
    "SanaTransformer2DModel": {**SANA, "sample_size": 16},
    "ZImageControlNetModel": {
        **Z_IMAGE,
        "control_layers_places": [0],
        "control_refiner_layers_places": [0],
        "control_in_dim": LATENT,
    },
    "ZImageTransformer2DModel": {
        **Z_IMAGE,
        "in_channels": LATENT,
        "n_layers": 2,
        "cap_feat_dim": TEXT_SIZE,
        "axes_dims": [8, 4, 4],
        "axes_lens": [512, 64, 64],
    },
}
