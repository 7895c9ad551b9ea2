"""Writes all of a Qwen3-TTS model but its weights: a folder to serve with dummy weights."""

from pathlib import Path

from omnistage.stages.checkpoint.files import write_json, write_tokenizer
from omnistage.stages.checkpoint.real_tokenizer import make_tokenizer
from omnistage.stages.qwen3_tts.checkpoint.generation import generation_config
from omnistage.stages.qwen3_tts.checkpoint.model_types import ModelSize, ModelType
from omnistage.stages.qwen3_tts.checkpoint.real_config import real_config
from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import (
    FOLDER,
    write_real_size_speech_tokenizer_config,
)

MAX_POSITIONS = 32768
MAX_NEW_TOKENS = 8192


def write_real_size_folder(folder: Path, *, model_type: ModelType, model_size: ModelSize) -> None:
    """Config, tokenizer and the speech tokenizer's config, in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "Qwen3TTSProcessor",
        "model_max_length": MAX_POSITIONS,
    }
    write_tokenizer(folder, tokenizer, settings)
    write_json(folder / "config.json", real_config(model_type, model_size))
    write_json(folder / "generation_config.json", generation_config(MAX_NEW_TOKENS))
    write_real_size_speech_tokenizer_config(folder / FOLDER)
