"""The parts of `small-image`, untrained: Qwen-Image's own, narrow, and the pipeline of them."""

import json
import random
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
from image.scenes import drawing
from tokenizers import models, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from omnistage.stages.checkpoint.tokenizer import (
    SPECIAL_TOKENS,
    TinyTokenizer,
    byte_characters,
    byte_level,
)
from omnistage.stages.diffusion.checkpoint.parts import make_tokenizer as as_fast
from omnistage.stages.diffusion.checkpoint.qwen_image import qwen_image_scheduler

SIDE = 128
CHANNELS = 8
TEXT_WIDTH = 128
NUM_PIECES = 640
TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
NUM_DROPPED = 34  # tokens of it before the prompt


def make_tokenizer() -> TinyTokenizer:
    """Byte-level BPE in which each word of template and prompts is a token; always the same."""
    trained = byte_level(models.BPE(), ())
    trainer = trainers.BpeTrainer(
        vocab_size=256 + NUM_PIECES,
        initial_alphabet=list(byte_characters().values()),
        show_progress=False,
    )
    pick = random.Random(3)
    lines = [TEMPLATE.format(drawing(pick).prompt) for _ in range(4_000)]
    lines = [line.replace("<|im_start|>", "").replace("<|im_end|>", "") for line in lines]
    trained.train_from_iterator(lines, trainer)
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    vocabulary = {character: byte for byte, character in byte_characters().items()}
    for first, second in merges:
        vocabulary.setdefault(first + second, len(vocabulary))
    made = TinyTokenizer(byte_level(models.BPE(vocab=vocabulary, merges=merges), SPECIAL_TOKENS))
    start = TEMPLATE.split("{}")[0]
    assert len(made.tokenizer.encode(start).ids) == NUM_DROPPED, "a word has become two tokens"
    return made


def new_vae() -> Any:
    """The autoencoder; a latent for each 8 x 8 pixels, as in the real one."""
    return AutoencoderKLQwenImage(
        base_dim=16,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 3, 3],
        num_res_blocks=1,
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )


def new_text_encoder(tokenizer: TinyTokenizer) -> Any:
    """Two layers of Qwen2.5-VL; its vision tower is as small as can be, and untrained."""
    config = Qwen2_5_VLConfig(
        tie_word_embeddings=True,
        text_config={
            "vocab_size": tokenizer.padded_size,
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 2 * TEXT_WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
            "pad_token_id": tokenizer.id("<|endoftext|>"),
            "bos_token_id": tokenizer.id("<|im_start|>"),
            "eos_token_id": tokenizer.id("<|im_end|>"),
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": TEXT_WIDTH,
            "fullatt_block_indexes": [0],
        },
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def new_transformer() -> Any:
    """The denoiser, five layers of 160."""
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * CHANNELS,
        out_channels=CHANNELS,
        num_layers=5,
        attention_head_dim=32,
        num_attention_heads=5,
        joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(8, 12, 12),
    )


def pipeline(vae: Any, encoder: Any, transformer: Any, tokenizer: TinyTokenizer) -> Any:
    """Diffusers' pipeline of the parts, with the real one's scheduler."""
    made = QwenImagePipeline(
        qwen_image_scheduler(), vae, encoder, as_fast(1024, tokenizer), transformer
    )
    assert made.prompt_template_encode == TEMPLATE
    assert made.prompt_template_encode_start_idx == NUM_DROPPED
    made.set_progress_bar_config(disable=True)
    return made


def freshly(maker: Any, *arguments: Any) -> Any:
    """A part from the same first weights each time, in float32."""
    torch.manual_seed(0)
    return maker(*arguments).float()
