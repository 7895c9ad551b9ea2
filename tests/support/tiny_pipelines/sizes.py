"""Small sizes of the components of image pipelines, by class."""

from collections.abc import Mapping
from typing import Any

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE

Sizes = Mapping[str, Any]
LATENT = 4  # channels
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
SIDES = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
UNET = {
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": (16, 32),
    "down_block_types": SIDES[0],
    "norm_num_groups": 4,
    "attention_head_dim": 8,
    "cross_attention_dim": TEXT_SIZE,
}
CONTROL = {
    **{name: value for name, value in UNET.items() if name != "sample_size"},
    "conditioning_embedding_out_channels": (8, 16),
}
UNION = {
    "num_trans_channel": 16,
    "num_trans_head": 2,
    "num_trans_layer": 1,
    "num_proj_channel": 16,
}
TIMES = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + TEXT_SIZE,
}
SDXL = {"cross_attention_dim": 2 * TEXT_SIZE, **TIMES}
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
RESIDUAL = ("ResBlock", "EfficientViTBlock")
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
    "AutoencoderDC": {
        "latent_channels": LATENT,
        "attention_head_dim": 2,
        "encoder_block_types": RESIDUAL,
        "decoder_block_types": RESIDUAL,
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)),
        "downsample_block_type": "conv",
        "upsample_block_type": "interpolate",
    },
    "AutoencoderKLFlux2": {
        "down_block_types": ("DownEncoderBlock2D",),
        "up_block_types": ("UpDecoderBlock2D",),
        "block_out_channels": (8,),
        "layers_per_block": 1,
        "latent_channels": 1,
        "norm_num_groups": 1,
        "sample_size": 32,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    },
    "AutoencoderKLQwenImage": {
        "base_dim": 24,
        "z_dim": LATENT,
        "dim_mult": [1, 2, 4],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True],
        "latents_mean": [0.0] * LATENT,
        "latents_std": [1.0] * LATENT,
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
    "ControlNetModel": CONTROL,
    "ControlNetUnionModel": {**CONTROL, **UNION},
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
    "Kandinsky3UNet": {
        "time_embedding_dim": 4,
        "groups": 2,
        "attention_head_dim": 4,
        "layers_per_block": 3,
        "block_out_channels": (32, 64),
        "cross_attention_dim": 4,
        "encoder_hid_dim": TEXT_SIZE,
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
    "MotionAdapter": {
        "block_out_channels": (16, 32),
        "motion_layers_per_block": 1,
        "motion_norm_num_groups": 4,
        "motion_num_attention_heads": 2,
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
    "SparseControlNetModel": {
        **CONTROL,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
        "motion_num_attention_heads": 2,
        "conditioning_channels": LATENT,
    },
    "T2IAdapter": {"channels": (16, 32), "num_res_blocks": 1, "downscale_factor": 2},
    "UNet2DConditionModel": {**UNET, "up_block_types": SIDES[1]},
    "VQModel": {
        "block_out_channels": (32, 64),
        "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        "latent_channels": LATENT,
        "norm_num_groups": 8,
        "norm_type": "spatial",
        "num_vq_embeddings": 12,
        "vq_embed_dim": LATENT,
    },
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
