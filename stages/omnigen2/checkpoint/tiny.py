"""A tiny OmniGen2 in the published layout, with random weights."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import SPECIAL_TOKENS, TinyTokenizer, byte_tokenizer
from omnistage.stages.lumina2.transformer import OmniGen2Transformer2DModel
from omnistage.stages.omnigen2.prompt import PICTURE

TEXT_SIZE = 64  # two heads of 32: vLLM's attention on a CPU knows none smaller
PATCH = 14  # pixels of the side of what the language model sees as one patch
TEXT_GAIN, DENOISER_GAIN = 6.0, 3.0
PICTURE_GAIN = -4.0  # of the token that begins a picture: some answers begin with it
INDEX = {
    "_class_name": "OmniGen2Pipeline",
    "_diffusers_version": "0.33.1",
    "mllm": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "processor": ["transformers", "Qwen2_5_VLProcessor"],
    "scheduler": [
        "scheduling_flow_match_euler_discrete_time_shifting",
        "FlowMatchEulerDiscreteScheduler",
    ],
    "transformer": ["transformer_omnigen2", "OmniGen2Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def write_tiny_omnigen2(folder: Path, seed: int = 0) -> None:
    """Write the pipeline's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        _mllm(tokenizer).save_pretrained(folder / "mllm")
        _transformer().save_pretrained(folder / "transformer")
        _vae().save_pretrained(folder / "vae")
    generation_config(tokenizer).save_pretrained(folder / "mllm")
    write_json(folder / "model_index.json", INDEX)
    _write_scheduler(folder / "scheduler")
    for name in ("processor", "mllm"):
        _write_processor(folder / name, tokenizer)


def make_tokenizer() -> TinyTokenizer:
    """A token a byte, and the one that begins a picture."""
    special = (*SPECIAL_TOKENS, PICTURE)
    return TinyTokenizer(byte_tokenizer(special), special, processor_class="Qwen2_5_VLProcessor")


def _write_scheduler(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    config = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "_diffusers_version": "0.33.1",
        "dynamic_time_shift": True,
        "num_train_timesteps": 1000,
    }
    write_json(folder / "scheduler_config.json", config)


def _write_processor(folder: Path, tokenizer: TinyTokenizer) -> None:
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, tokenizer)
    vision = {
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": PATCH,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 4 * PATCH**2,
        "max_pixels": 256 * PATCH**2,
        # vLLM normalizes pixels by what is written here, and without it not at all.
        "image_mean": OPENAI_CLIP_MEAN,
        "image_std": OPENAI_CLIP_STD,
    }
    image = {**vision, "image_processor_type": "Qwen2VLImageProcessor"}
    write_json(folder / "preprocessor_config.json", image)
    video = {**vision, "video_processor_type": "Qwen2VLVideoProcessor"}
    write_json(folder / "video_preprocessor_config.json", video)


def _mllm(tokenizer: TinyTokenizer) -> Qwen2_5_VLForConditionalGeneration:
    """The language model, whose states differ from text to text."""
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": tokenizer.padded_size,
            "hidden_size": TEXT_SIZE,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,  # vLLM takes it for the vision tower, too
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            "bos_token_id": tokenizer.id("<|im_start|>"),
            "eos_token_id": tokenizer.id("<|im_end|>"),
            "pad_token_id": tokenizer.id("<|endoftext|>"),
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": TEXT_SIZE,
            "patch_size": PATCH,
            "window_size": 4 * PATCH,
            "fullatt_block_indexes": [1],
        },
        image_token_id=tokenizer.id("<|image_pad|>"),
        video_token_id=tokenizer.id("<|video_pad|>"),
        vision_start_token_id=tokenizer.id("<|vision_start|>"),
        vision_end_token_id=tokenizer.id("<|vision_end|>"),
    )
    model = Qwen2_5_VLForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(TEXT_GAIN)
        model.lm_head.weight[tokenizer.id(PICTURE)] *= PICTURE_GAIN
    return model


def _transformer() -> OmniGen2Transformer2DModel:
    model = OmniGen2Transformer2DModel(
        in_channels=4,
        hidden_size=48,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=4,
        num_kv_heads=2,
        multiple_of=16,
        axes_dim_rope=(4, 4, 4),
        axes_lens=(1000, 1000, 1000),
        text_feat_dim=TEXT_SIZE,
        timestep_scale=1000.0,
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "layers" in name:
                parameter.mul_(DENOISER_GAIN)
    return model


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(4, 8, 8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=1,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        shift_factor=0.1159,
        scaling_factor=0.3611,
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()
