"""The decoder of Qwen3-TTS's speech tokenizer as modules; `vocoder.py` computes with them.

It is transformers' vocoder of Qwen3-Omni with a quantizer and a convolution in front and linear
layers around the transformer, so its other parts are of the same classes. Names are those of a
checkpoint, but for the codebooks, which a checkpoint has as sums and counts (`codec_weights.py`).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2WavDecoderBlock,
    Qwen3OmniMoeCode2WavTransformerModel,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeSnakeBeta,
)

from omnistage.stage_configs.json_types import Json

NUM_SEMANTIC = 1  # leading codebooks with a projection of their own; no config says it
KERNEL_SIZE = 7  # of the first and last convolution of the sound


def codec_config(settings: Json) -> Qwen3OmniMoeCode2WavConfig:
    """`decoder_config` of a speech tokenizer's config.json, with what the code has as defaults."""
    return Qwen3OmniMoeCode2WavConfig(**{"latent_dim": 1024, **settings})


class CodecDecoder(nn.Module):
    """Codes in, samples out; the parts stand in the order in which they are run."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = Qwen3OmniMoeCausalConvNet(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = _transformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList(
                [
                    Qwen3OmniMoeCausalTransConvNet(
                        config.latent_dim, config.latent_dim, factor, factor
                    ),
                    Qwen3OmniMoeConvNeXtBlock(config.latent_dim),
                ]
            )
            for factor in config.upsampling_ratios
        )
        self.decoder = nn.ModuleList(_sound_layers(config))


class SplitQuantizer(nn.Module):
    """Residual codebooks: those that carry meaning and the rest, each with a projection."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.rvq_first = Quantizer(config, NUM_SEMANTIC)
        self.rvq_rest = Quantizer(config, config.num_quantizers - NUM_SEMANTIC)


class Quantizer(nn.Module):
    """The vectors of several codebooks [n, size, width], whose sum is projected.

    A checkpoint has a projection into the codebooks too, which decoding does not need.
    """

    def __init__(self, config: Any, num_codebooks: int) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.codebooks = nn.Parameter(torch.zeros(num_codebooks, config.codebook_size, width))
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)


def _transformer(config: Any) -> nn.Module:
    transformer: nn.Module = Qwen3OmniMoeCode2WavTransformerModel(config)
    transformer.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
    transformer.output_proj = nn.Linear(config.hidden_size, config.latent_dim)
    return transformer


def _sound_layers(config: Any) -> Iterable[nn.Module]:
    yield Qwen3OmniMoeCausalConvNet(config.latent_dim, config.decoder_dim, KERNEL_SIZE)
    for layer in range(len(config.upsample_rates)):
        block: Any = Qwen3OmniMoeCode2WavDecoderBlock(config, layer)
        block.block[1].left_pad = 0  # cut on the right alone: nothing looks ahead
        yield block
    width = config.decoder_dim // 2 ** len(config.upsample_rates)
    yield Qwen3OmniMoeSnakeBeta(width)
    yield Qwen3OmniMoeCausalConvNet(width, 1, KERNEL_SIZE)


def samples_per_frame(config: Any) -> int:
    """How many samples a frame of codes becomes."""
    return math.prod([*config.upsampling_ratios, *config.upsample_rates])
