"""Writes a complete Qwen2.5-Omni checkpoint of a few megabytes, with random weights."""

from pathlib import Path

import torch
from transformers import Qwen2_5OmniForConditionalGeneration

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer, byte_tokenizer
from omnistage.stages.qwen2_5_omni.checkpoint.processors import TINY
from omnistage.stages.qwen2_5_omni.checkpoint.speakers import make_speakers, write_speakers
from omnistage.stages.qwen2_5_omni.checkpoint.text import (
    CHAT_TEMPLATE,
    MEDIA_TOKENS,
    PROCESSOR_CLASS,
    SPECIAL_TOKENS,
)
from omnistage.stages.qwen2_5_omni.checkpoint.tiny_config import (
    SPEAKER_SIZE,
    SpeechTokens,
    make_config,
)
from omnistage.stages.qwen2_5_omni.checkpoint.tiny_weights import fill_with_noise, set_loudness

NUM_MEL_FRAMES = 60  # of a speaker's spectrogram


def write_tiny_checkpoint(folder: Path, seed: int = 0, real_dit: bool = False) -> None:
    """Write the checkpoint of this seed into a folder, in Hugging Face layout.

    Weights of thinker and talker are bfloat16 and those of token2wav float32, as the published
    ones are; loaded as float32 they are exact everywhere. With `real_dit` the DiT has the published
    one's layers, at the tiny width.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, template=CHAT_TEMPLATE)
    write_json(folder / "preprocessor_config.json", TINY.image_and_audio())
    model = Qwen2_5OmniForConditionalGeneration(make_config(tokenizer, real_dit)).float().eval()
    fill_with_noise(model, tokenizer, seed)
    first = SpeechTokens(tokenizer).first_speaker
    speakers = make_speakers(first, SPEAKER_SIZE, NUM_MEL_FRAMES, seed)
    set_loudness(model.token2wav, next(iter(speakers.values())))
    model.generation_config = generation_config(tokenizer)
    model.thinker.to(torch.bfloat16)
    model.talker.to(torch.bfloat16)
    model.save_pretrained(folder)
    write_speakers(folder, speakers)


def make_tokenizer() -> TinyTokenizer:
    """It is the same for every seed."""
    made = byte_tokenizer(SPECIAL_TOKENS)
    return TinyTokenizer(made, SPECIAL_TOKENS, MEDIA_TOKENS, PROCESSOR_CLASS)
