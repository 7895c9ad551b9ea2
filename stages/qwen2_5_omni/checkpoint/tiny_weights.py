"""The tiny checkpoint's weights: random, but scaled so that text varies, ends, and can be heard."""

import math
from typing import Any

import torch
from transformers import Qwen2_5OmniForConditionalGeneration

from omnistage.stages.checkpoint.random_weights import (
    PRINTABLE,
    fill_speaking_model,
    let_sentences_end,
    scale,
    with_norm_of_noise,
)
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen2_5_omni.checkpoint.tiny_config import (
    CODEC_EOS,
    NUM_CODES,
    SpeechTokens,
)

# Above 1, so that what attention reads still matters after layers of random weights.
_GAIN = 1.5
# How readily text and speech end: their length falls quickly as these grow.
_END_OF_TEXT_SCALE = 0.8
_LINE_BREAK_SCALE = 1.0
_END_OF_CODES_SCALE = 0.85
# Of the waveform, for random codes.
_PEAK = 0.4


@torch.no_grad()
def fill_with_noise(
    model: Qwen2_5OmniForConditionalGeneration, tokenizer: TinyTokenizer, seed: int
) -> None:
    """Give every parameter of the model its value for this seed."""
    fill_speaking_model(model, "token2wav", seed, _weight_scale)
    let_sentences_end(
        model.thinker.lm_head.weight,
        model.thinker.get_input_embeddings().weight,
        tokenizer.id("<|im_end|>"),
        _END_OF_TEXT_SCALE,
        _LINE_BREAK_SCALE,
    )
    _let_speech_end(model, SpeechTokens(tokenizer))


def _weight_scale(name: str, parameter: torch.Tensor) -> float:
    """The standard deviation of a weight of the text models and their encoders."""
    if any(part in name for part in ("embed_tokens", "lm_head", "codec_head")):
        return 1.0
    fan_in = parameter[0].numel() if parameter.dim() > 2 else parameter.shape[-1]
    return _GAIN / math.sqrt(fan_in)


def _let_speech_end(model: Qwen2_5OmniForConditionalGeneration, tokens: SpeechTokens) -> None:
    """Let codes alone be said, and the end once the text is spoken; a row of zeros says nothing."""
    head = model.talker.codec_head.weight
    head[NUM_CODES:] = 0
    embedding = model.thinker.get_input_embeddings().weight
    spoken = model.talker.thinker_to_talker_proj(embedding[PRINTABLE]).mean(dim=0)
    silence = model.talker.thinker_to_talker_proj(embedding[tokens.pad])
    head[CODEC_EOS] = _END_OF_CODES_SCALE * with_norm_of_noise(silence - spoken)


@torch.no_grad()
def set_loudness(token2wav: Any, voice: dict[str, Any]) -> None:
    """Scale the last convolution so that a stretch of random codes peaks where a voice should.

    It is measured far below the final clamp to -1 ... 1, where the output is linear in that scale.
    """
    torch.manual_seed(0)
    codes = torch.randint(NUM_CODES, (1, 36))
    last = token2wav.code2wav_bigvgan_model.conv_post
    scale(last, 1e-4)
    samples = token2wav(codes, conditioning=voice["cond"], reference_mel=voice["ref_mel"])
    scale(last, _PEAK / samples.abs().max().item())
