"""Records what the qwen-tts package makes of codes and sounds: qwen3_tts_codec.safetensors.

The checkpoint is a tiny one, which is written here:

    PYTHONPATH=.pkg:tests python -m support.models.tiny_voice_model FOLDER

and read in an environment with qwen-tts 0.1.1 (`pip install --no-deps qwen-tts`), transformers
4.57.3, librosa and soundfile; what only the package's other tokenizer needs is stubbed:

    PYTHONPATH=tests python -m references.qwen3_tts_codec FOLDER
"""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

import torch
import transformers
from references.qwen3_tts_inputs import LENGTHS, STRIDE, codes, sound
from safetensors.torch import load_file, save_file

STUBS = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")
for name in STUBS:
    sys.modules.setdefault(name, MagicMock(__spec__=ModuleSpec(name, None)))

from qwen_tts.core.models.configuration_qwen3_tts import (  # noqa: E402
    Qwen3TTSSpeakerEncoderConfig,
)
from qwen_tts.core.models.modeling_qwen3_tts import (  # noqa: E402
    Qwen3TTSSpeakerEncoder,
    mel_spectrogram,
)
from qwen_tts.inference.qwen3_tts_tokenizer import Qwen3TTSTokenizer  # noqa: E402

assert transformers.__version__ == "4.57.3"
Tensors = dict[str, torch.Tensor]


def decoded(tokenizer: Qwen3TTSTokenizer) -> Tensors:
    """One decode of each whole stream, in float64: the package's own pieces have seams."""
    decoder = tokenizer.model.decoder.double()
    samples = decoder(torch.from_numpy(codes()).long().transpose(1, 2))[:, 0]
    return {"samples": samples[:, ::STRIDE].float()}


def encoded(tokenizer: Qwen3TTSTokenizer) -> Tensors:
    """The codes of each sound alone."""
    return {
        f"codes.{length}": tokenizer.encode(sound(length), sr=24_000).audio_codes[0].int()
        for length in LENGTHS
    }


def voices(folder: Path) -> Tensors:
    """The vector of each sound's voice, as `extract_speaker_embedding` makes it."""
    settings = json.loads((folder / "config.json").read_text())["speaker_encoder_config"]
    encoder = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**settings)).eval()
    prefix = "speaker_encoder."
    stored = load_file(folder / "model.safetensors")
    encoder.load_state_dict(
        {k.removeprefix(prefix): one for k, one in stored.items() if k.startswith(prefix)}
    )
    found = {}
    for length in LENGTHS:
        mel = mel_spectrogram(
            torch.from_numpy(sound(length)).unsqueeze(0),
            n_fft=1024,
            num_mels=128,
            sampling_rate=24_000,
            hop_size=256,
            win_size=1024,
            fmin=0,
            fmax=12_000,
        ).transpose(1, 2)
        found[f"speaker.{length}"] = encoder(mel)[0]
    return found


@torch.inference_mode()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = Qwen3TTSTokenizer.from_pretrained(folder / "speech_tokenizer", dtype=torch.float32)
    recorded = {**encoded(tokenizer), **voices(folder), **decoded(tokenizer)}
    recorded = {name: one.contiguous() for name, one in recorded.items()}
    save_file(recorded, Path(__file__).with_suffix(".safetensors"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
