"""Writes complete Qwen3-TTS checkpoints of about a megabyte, with random weights."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from omnistage.stages.checkpoint.files import write_json, write_tokenizer
from omnistage.stages.checkpoint.tokenizer import make_tokenizer
from omnistage.stages.qwen3_tts.checkpoint.generation import generation_config
from omnistage.stages.qwen3_tts.checkpoint.model_types import ModelSize, ModelType
from omnistage.stages.qwen3_tts.checkpoint.speech_tokenizer_config import FOLDER
from omnistage.stages.qwen3_tts.checkpoint.tiny_config import make_config
from omnistage.stages.qwen3_tts.checkpoint.tiny_speech_tokenizer import write_tiny_speech_tokenizer
from omnistage.stages.qwen3_tts.checkpoint.tiny_weights import make_speaker_encoder, make_weights

MAX_NEW_TOKENS = 512


def write_tiny_checkpoint(
    folder: Path, seed: int = 0, *, model_type: ModelType, model_size: ModelSize
) -> None:
    """Write the checkpoint of this seed into a folder, in Hugging Face layout.

    Its weights are bfloat16, as the real ones are; loaded as float32 they are exact everywhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer, {"processor_class": "Qwen3TTSProcessor"})
    config = make_config(model_type, model_size, tokenizer)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation_config(MAX_NEW_TOKENS))
    talker = config["talker_config"]
    weights = make_weights(talker, seed)
    if model_type == "base":
        weights |= make_speaker_encoder(config["speaker_encoder_config"], seed)
    rounded = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    write_tiny_speech_tokenizer(folder / FOLDER, seed)
