"""The tiny checkpoint's weights: random, but scaled so that text varies and audio can be heard."""

import math

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.qwen3_omni.tiny_config import CODEC_EOS
from omnistage.stages.qwen3_omni.tiny_tokenizer import TinyTokenizer

_PRINTABLE = slice(32, 127)
# Above 1, so that an input still matters after a few layers of random weights.
_GAIN = 2.5


@torch.no_grad()
def fill_with_noise(
    model: Qwen3OmniMoeForConditionalGeneration, tokenizer: TinyTokenizer, seed: int
) -> None:
    """Give every parameter of the model its value for this seed."""
    generator = torch.Generator().manual_seed(seed)
    # Its own, so that a change to the text models leaves the voice as it is.
    vocoder_generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_vocoder = name.startswith("code2wav.")
        noise = torch.randn(
            parameter.shape, generator=vocoder_generator if is_vocoder else generator
        )
        if parameter.dim() == 1:
            _fill_vector(name, parameter, noise)
        elif any(part in name for part in ("embed_tokens", "pos_embed", "codec_embedding")):
            parameter.copy_(noise)
        elif is_vocoder:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        else:
            fan_in = parameter[0].numel() if parameter.dim() > 3 else parameter.shape[-1]
            parameter.copy_(_GAIN / math.sqrt(fan_in) * noise)
    _shape_text_head(model.thinker.lm_head.weight, tokenizer, generator)
    _damp_early_end(model)
    _keep_waveform_in_range(model)


def _fill_vector(name: str, parameter: torch.Tensor, noise: torch.Tensor) -> None:
    """Norms near 1 and biases near 0; the vocoder's other scales stay as they were made."""
    if name.endswith("weight") and ("norm" in name or "ln_" in name):
        parameter.copy_(1 + 0.1 * noise)
    elif name.endswith("bias"):
        parameter.copy_(0.1 * noise)


def _shape_text_head(
    head: torch.Tensor, tokenizer: TinyTokenizer, generator: torch.Generator
) -> None:
    """Let only printable ASCII win, and now and then the end of the turn."""
    noise = torch.randn(head.shape, generator=generator)
    head.zero_()
    head[_PRINTABLE] = noise[_PRINTABLE]
    head[tokenizer.id("<|im_end|>")] = 0.5 * noise[tokenizer.id("<|im_end|>")]


def _damp_early_end(model: Qwen3OmniMoeForConditionalGeneration) -> None:
    """Make codec EOS rare: transformers fails on an answer of no frames."""
    model.talker.codec_head.weight[CODEC_EOS] *= 0.5


def _keep_waveform_in_range(model: Qwen3OmniMoeForConditionalGeneration) -> None:
    """Keep the last convolution's output inside the clamp to -1 … 1."""
    last = model.code2wav.decoder[-1].conv
    last.weight *= 0.02
    last.bias *= 0.02
