"""What of a tiny Qwen3-TTS checkpoint hears and is heard: the speech and the speaker encoder."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from omnistage.stages.qwen3_tts.checkpoint.noise import fill_with_noise
from omnistage.stages.qwen3_tts.checkpoint.tiny_speech_tokenizer import write_tiny_speech_tokenizer
from omnistage.stages.qwen3_tts.speaker_encoder import SpeakerEncoder, SpeakerEncoderConfig

SPEAKER_ENCODER = {
    "enc_dim": 24,
    "enc_channels": [16, 16, 16, 16, 48],
    "enc_attention_channels": 8,
    "enc_se_channels": 8,
    "sample_rate": 24_000,
}


def write_tiny_voice_model(folder: Path, seed: int = 0) -> None:
    """Into a folder, as a checkpoint of a Base model has it; there is no talker."""
    write_tiny_speech_tokenizer(folder / "speech_tokenizer", seed)
    settings = {"model_type": "qwen3_tts", "speaker_encoder_config": SPEAKER_ENCODER}
    (folder / "config.json").write_text(json.dumps(settings))
    encoder = SpeakerEncoder(SpeakerEncoderConfig(**SPEAKER_ENCODER))  # type: ignore[arg-type]
    fill_with_noise(encoder, torch.Generator().manual_seed(seed))
    tensors = {f"speaker_encoder.{name}": one for name, one in encoder.state_dict().items()}
    tensors["talker.codec_head.weight"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors")


if __name__ == "__main__":
    write_tiny_voice_model(Path(sys.argv[1]))
