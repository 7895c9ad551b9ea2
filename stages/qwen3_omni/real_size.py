"""Writes all of Qwen3-Omni-30B-A3B but its weights: a folder to serve with dummy weights."""

from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

from tokenizers import models

from omnistage.stages.qwen3_omni.folder import generation_config, write_json, write_tokenizer
from omnistage.stages.qwen3_omni.processors import (
    REAL_PIXELS,
    REAL_SECONDS,
    image_and_audio_config,
    video_config,
)
from omnistage.stages.qwen3_omni.real_config import real_config
from omnistage.stages.qwen3_omni.tiny_tokenizer import TinyTokenizer, byte_characters, byte_level

ROLE_IDS = {"system": 8948, "user": 872, "assistant": 77091}
SPECIAL_TOKENS = (  # from id 151643 on
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>", "<|audio_start|>", "<|audio_end|>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"),
)
NUM_ORDINARY = 151643
MAX_POSITIONS = 65536
NUM_WORDS = 2000  # of words.txt: each is one token, with the space before it


def write_real_size_folder(folder: Path) -> None:
    """Config, tokenizer, template and processors, in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_POSITIONS}
    write_tokenizer(folder, tokenizer, settings)
    write_json(
        folder / "preprocessor_config.json", image_and_audio_config(REAL_PIXELS, REAL_SECONDS)
    )
    write_json(folder / "video_preprocessor_config.json", video_config(REAL_PIXELS))
    real_config().save_pretrained(folder)
    generation_config(tokenizer).save_pretrained(folder)
    words = islice(map("".join, product(ascii_lowercase, repeat=4)), NUM_WORDS)
    (folder / "words.txt").write_text("\n".join(words) + "\n")


def make_tokenizer() -> TinyTokenizer:
    """One token a byte, the special tokens and roles at their real ids, a word for any other id.

    A word is a space and four letters, so whatever a model of random weights samples is text.
    """
    vocabulary = dict(ROLE_IDS)
    free = (id for id in range(NUM_ORDINARY) if id not in ROLE_IDS.values())
    vocabulary |= dict(zip(byte_characters().values(), islice(free, 256), strict=True))
    words = product(ascii_lowercase, repeat=4)
    vocabulary |= {"\u0120" + "".join(next(words)): id for id in free}
    model = models.BPE(vocab=vocabulary, merges=[], ignore_merges=True)
    return TinyTokenizer(byte_level(model, SPECIAL_TOKENS))
