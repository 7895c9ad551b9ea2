"""A tiny Qwen-Image."""

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE, TOKENIZER, make_tokenizer

_TEXT_GAIN = 8.0
_DENOISER_GAINS = {
    "norm_q": 3.0,
    "norm_added_k": 2.0,
    "add_v_proj": 4.0,
    "to_out": 4.0,
    "proj_out": 2.0,
}


def make_tiny_qwen_image() -> QwenImagePipeline:
    """The pipeline with the real one's parts, each as small as it can be."""
    text = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": TOKENIZER.padded_size,
            "hidden_size": TEXT_SIZE,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            "pad_token_id": TOKENIZER.id("<|endoftext|>"),
            "bos_token_id": TOKENIZER.id("<|im_start|>"),
            "eos_token_id": TOKENIZER.id("<|im_end|>"),
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": TEXT_SIZE,
            "fullatt_block_indexes": [0],
        },
    )
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=TEXT_SIZE,
        axes_dims_rope=(8, 4, 4),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=24,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    encoder = Qwen2_5_VLForConditionalGeneration(text)
    _let_prompts_be_seen(encoder.model.language_model, transformer)
    return QwenImagePipeline(
        qwen_image_scheduler(), vae, encoder.eval(), make_tokenizer(), transformer
    )


def qwen_image_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """The model's own."""
    return FlowMatchEulerDiscreteScheduler(
        base_image_seq_len=256,
        max_image_seq_len=8192,
        base_shift=0.5,
        max_shift=0.9,
        shift_terminal=0.02,
        use_dynamic_shifting=True,
    )


@torch.no_grad()
def _let_prompts_be_seen(text: torch.nn.Module, transformer: torch.nn.Module) -> None:
    """Scale what a picture owes to its prompt: as they are made, two prompts give one picture."""
    for parameter in text.parameters():
        if parameter.dim() > 1:
            parameter.mul_(_TEXT_GAIN)
    for name, parameter in transformer.named_parameters():
        for part, gain in _DENOISER_GAINS.items():
            if part in name:
                parameter.mul_(gain)
