"""Writes all of Qwen2.5-Omni but its weights: a folder to serve with dummy weights."""

from pathlib import Path

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.real_tokenizer import word_tokenizer, words
from omnistage.stages.checkpoint.tokenizer import TinyTokenizer
from omnistage.stages.qwen2_5_omni.checkpoint.processors import REAL
from omnistage.stages.qwen2_5_omni.checkpoint.real_config import (
    B3,
    B7,
    FIRST_SPEAKER,
    SPEAKER_SIZE,
    Sizes,
    real_config,
)
from omnistage.stages.qwen2_5_omni.checkpoint.speakers import make_speakers, write_speakers
from omnistage.stages.qwen2_5_omni.checkpoint.text import (
    CHAT_TEMPLATE,
    MEDIA_TOKENS,
    MORE_TOKENS,
    PROCESSOR_CLASS,
    SPECIAL_TOKENS,
)

MAX_POSITIONS = 32768
NUM_WORDS = 2000  # of words.txt: each is one token, with the space before it
NUM_MEL_FRAMES = 300  # of a speaker's spectrogram


def write_7b_folder(folder: Path) -> None:
    """The 7B's config, tokenizer, template, processors and random voices, in its layout."""
    _write(folder, B7)


def write_3b_folder(folder: Path) -> None:
    """The 3B's."""
    _write(folder, B3)


def _write(folder: Path, sizes: Sizes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = word_tokenizer((*SPECIAL_TOKENS, *MORE_TOKENS))
    tokenizer = TinyTokenizer(made, SPECIAL_TOKENS, MEDIA_TOKENS, PROCESSOR_CLASS)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_POSITIONS}
    write_tokenizer(folder, tokenizer, settings, CHAT_TEMPLATE)
    write_json(folder / "preprocessor_config.json", REAL.image_and_audio())
    real_config(sizes).save_pretrained(folder)
    generation_config(tokenizer).save_pretrained(folder)
    write_speakers(folder, make_speakers(FIRST_SPEAKER, SPEAKER_SIZE, NUM_MEL_FRAMES, seed=0))
    (folder / "words.txt").write_text("\n".join(words(NUM_WORDS)) + "\n")
