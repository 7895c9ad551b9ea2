"""Small sizes of U-Nets, of what goes with them, of VAEs of images and of models of audio."""

from collections.abc import Mapping

from support.tiny_pipelines.sizes import LATENT, Sizes

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE

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
RESIDUAL = ("ResBlock", "EfficientViTBlock")

UNET_SIZES: Mapping[str, Sizes] = {
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
    "ControlNetModel": CONTROL,
    "ControlNetUnionModel": {**CONTROL, **UNION},
    "AutoencoderKL": {},
    "Kandinsky3UNet": {
        "time_embedding_dim": 4,
        "groups": 2,
        "attention_head_dim": 4,
        "layers_per_block": 3,
        "block_out_channels": (32, 64),
        "cross_attention_dim": 4,
        "encoder_hid_dim": TEXT_SIZE,
    },
    "MotionAdapter": {
        "block_out_channels": (16, 32),
        "motion_layers_per_block": 1,
        "motion_norm_num_groups": 4,
        "motion_num_attention_heads": 2,
    },
    "SparseControlNetModel": {
        **CONTROL,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
        "motion_num_attention_heads": 2,
        "conditioning_channels": LATENT,
    },
    "AutoencoderOobleck": {
        "encoder_hidden_size": 6,
        "downsampling_ratios": [1, 2],
        "decoder_channels": 3,
        "decoder_input_channels": LATENT,
        "channel_multiples": [2, 4],
        "sampling_rate": 16,
    },
    "StableAudioDiTModel": {
        "sample_size": 16,
        "in_channels": LATENT,
        "out_channels": LATENT,
        "num_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "num_key_value_attention_heads": 1,
        "cross_attention_dim": 16,
        "time_proj_dim": 8,
        "global_states_input_dim": 2 * TEXT_SIZE,
        "cross_attention_input_dim": TEXT_SIZE,
    },
    "StableAudioProjectionModel": {
        "text_encoder_dim": TEXT_SIZE,
        "conditioning_dim": TEXT_SIZE,
        "min_value": 0,
        "max_value": 32,
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
}
