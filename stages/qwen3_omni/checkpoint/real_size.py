"""Writes all of Qwen3-Omni-30B-A3B but its weights: a folder to serve with dummy weights."""

from pathlib import Path

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.real_tokenizer import make_tokenizer, words
from omnistage.stages.qwen3_omni.checkpoint.processors import REAL
from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config

MAX_POSITIONS = 65536
NUM_WORDS = 2000  # of words.txt: each is one token, with the space before it


def write_real_size_folder(folder: Path) -> None:
    """Config, tokenizer, template and processors, in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_POSITIONS}
    write_tokenizer(folder, tokenizer, settings)
    write_json(folder / "preprocessor_config.json", REAL.image_and_audio())
    write_json(folder / "video_preprocessor_config.json", REAL.video())
    real_config().save_pretrained(folder)
    generation_config(tokenizer).save_pretrained(folder)
    (folder / "words.txt").write_text("\n".join(words(NUM_WORDS)) + "\n")
