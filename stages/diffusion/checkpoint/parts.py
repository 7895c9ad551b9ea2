"""Common parts of tiny pipelines: tokenizer, text encoders, a decoder of images."""

from diffusers import AutoencoderKL
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from omnistage.stages.checkpoint import tokenizer as tiny_tokenizer

TEXT_SIZE = 64  # two heads of 32: vLLM's attention on a CPU knows none smaller
CLIP_LENGTH = 77
TOKENIZER = tiny_tokenizer.make_tokenizer()
PAD, EOS = "<|endoftext|>", "<|im_end|>"


def make_tokenizer(
    max_length: int = 512, made: tiny_tokenizer.TinyTokenizer = TOKENIZER
) -> PreTrainedTokenizerFast:
    """A token a byte."""
    return PreTrainedTokenizerFast(
        tokenizer_object=made.tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=max_length,
    )


def make_clip(with_projection: bool = False) -> CLIPTextModel | CLIPTextModelWithProjection:
    """CLIP's text encoder; what it pools is at the first padding."""
    config = CLIPTextConfig(
        vocab_size=TOKENIZER.padded_size,
        hidden_size=TEXT_SIZE,
        projection_dim=TEXT_SIZE,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CLIP_LENGTH,
        pad_token_id=TOKENIZER.id(PAD),
        bos_token_id=TOKENIZER.id(EOS),
        eos_token_id=TOKENIZER.id(PAD),
    )
    made = CLIPTextModelWithProjection(config) if with_projection else CLIPTextModel(config)
    return made.eval()


def t5_sizes(width: int) -> dict[str, int | str]:
    """The arguments of a tiny T5's configuration."""
    return {
        "vocab_size": TOKENIZER.padded_size,
        "d_model": width,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        "feed_forward_proj": "gated-gelu",
    }


def make_t5(width: int = TEXT_SIZE) -> T5EncoderModel:
    """T5's encoder."""
    return T5EncoderModel(T5Config(**t5_sizes(width))).eval()


def make_vae(num_channels: int = 4) -> AutoencoderKL:
    """Pictures of twice the latents' sides."""
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=num_channels,
        sample_size=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=1.0,
    ).eval()
