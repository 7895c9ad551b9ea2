"""The tiny checkpoint's weights: random, but scaled so that text varies, ends, and can be heard."""

import math
from typing import Any

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.checkpoint.random_weights import (
    LINE_BREAK_SCALE,
    PRINTABLE,
    fill_speaking_model,
    let_sentences_end,
    scale,
    with_norm_of_noise,
)
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen3_omni.checkpoint.tiny_config import (
    CODEBOOK_SIZE,
    CODEC_EOS,
    NUM_CODEBOOKS,
)

# Above 1, so that what attention and the experts read still matters after layers of random weights.
_GAIN = 2.5
# What they write back is kept low, so that the newest token stays visible in the last layer.
_OUTPUT_GAIN = 1.5
_EMBEDDING_SCALE = 1.0
_THOUGHT_ENDS = [ord(character) for character in ",;:"]
# How readily speech and thoughts end: their lengths fall quickly as these grow.
_END_OF_THOUGHT_SCALE = 1.2
_END_OF_CODES_SCALE = 0.5
# Of the waveform, for random codes.
_PEAK = 0.4


@torch.no_grad()
def fill_with_noise(
    model: Qwen3OmniMoeForConditionalGeneration, tokenizer: TinyTokenizer, seed: int
) -> None:
    """Give every parameter of the model its value for this seed."""
    fill_speaking_model(model, "code2wav", seed, _weight_scale)
    let_sentences_end(
        model.thinker.lm_head.weight,
        model.thinker.get_input_embeddings().weight,
        tokenizer.id("<|im_end|>"),
    )
    if model.has_talker:
        _let_speech_end(model, tokenizer)
        _set_loudness(model.code2wav)


@torch.no_grad()
def let_thoughts_end(model: Qwen3OmniMoeForConditionalGeneration, tokenizer: TinyTokenizer) -> None:
    """Let a thought end after a comma or its like, and not at once."""
    head = model.thinker.lm_head.weight
    embedding = model.thinker.get_input_embeddings().weight
    towards = embedding[_THOUGHT_ENDS].mean(dim=0) - embedding[PRINTABLE].mean(dim=0)
    end = tokenizer.id("</think>")
    line_break = with_norm_of_noise(embedding[ord("\n")])
    head[end] = _END_OF_THOUGHT_SCALE * with_norm_of_noise(towards)
    head[end] -= LINE_BREAK_SCALE * line_break


def _weight_scale(name: str, parameter: torch.Tensor) -> float:
    """The standard deviation of a weight outside the vocoder."""
    if "embed_tokens" in name:
        return _EMBEDDING_SCALE
    if any(part in name for part in ("pos_embed", "codec_embedding", "lm_head", "codec_head")):
        return 1.0
    gain = _OUTPUT_GAIN if "o_proj" in name or "down_proj" in name else _GAIN
    fan_in = parameter[0].numel() if parameter.dim() > 3 else parameter.shape[-1]
    return gain / math.sqrt(fan_in)


def _let_speech_end(model: Qwen3OmniMoeForConditionalGeneration, tokenizer: TinyTokenizer) -> None:
    """Let codec EOS come once the text is spoken: transformers fails on an answer of no frames."""
    embedding = model.thinker.get_input_embeddings().weight
    spoken = model.talker.text_projection(embedding[PRINTABLE]).mean(dim=0)
    silence = model.talker.text_projection(embedding[tokenizer.id("<tts_pad>")])
    row = _END_OF_CODES_SCALE * with_norm_of_noise(silence - spoken)
    model.talker.codec_head.weight[CODEC_EOS] = row


def _set_loudness(code2wav: Any) -> None:
    """Scale the last convolution so that a stretch of random codes peaks where the voice should.

    It is measured far below the final clamp to -1 ... 1, where the output is linear in that scale.
    """
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(CODEBOOK_SIZE, (1, NUM_CODEBOOKS, 50), generator=generator)
    last = code2wav.decoder[-1].conv
    scale(last, 1e-4)
    scale(last, _PEAK / code2wav(codes).abs().max().item())
