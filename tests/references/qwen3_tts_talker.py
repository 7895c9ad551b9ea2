"""Records what the qwen-tts package speaks: qwen3_tts_talker.safetensors.

The checkpoints are tiny ones, which are written here:

    for model in qwen3-tts qwen3-tts-design qwen3-tts-base-0.6b; do
        omnistage tiny $model FOLDER/$model
    done

and read in an environment with qwen-tts 0.1.1 (`pip install --no-deps qwen-tts`), transformers
4.57.3, librosa, soundfile and accelerate; what only the package's other tokenizer needs is stubbed:

    PYTHONPATH=tests python -m references.qwen3_tts_talker FOLDER

Recorded are the codes of greedy answers, some of their samples (of one decode, without the frames
of a reference sound), and a hash of each checkpoint: answers of another one say nothing.
"""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import transformers
from references.qwen3_tts_talks import (
    MAX_FRAMES,
    MODELS,
    SAMPLES_A_FRAME,
    STRIDE,
    Talk,
    checkpoint_hash,
    key,
    sound_of,
    talks,
)
from safetensors.torch import save_file

for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox"):
    sys.modules.setdefault(name, MagicMock(__spec__=ModuleSpec(name, None)))
sys.modules.setdefault("onnxruntime", MagicMock(__spec__=ModuleSpec("onnxruntime", None)))

from qwen_tts import Qwen3TTSModel  # noqa: E402

assert transformers.__version__ == "4.57.3"

# n frames are n + 1 tokens: the last one is not fed back.
GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": MAX_FRAMES + 1}


class Recorder:
    """A model whose codes and whole sounds are kept."""

    def __init__(self, folder: Path) -> None:
        self.tts = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32)
        self.model = self.tts.model
        self.codes = self.sound = torch.zeros(0)
        self._generate, self._decode = self.model.generate, self.model.speech_tokenizer.decode
        self.model.generate = self._generating
        self.model.speech_tokenizer.decode = self._decoding

    def _generating(self, *arguments: Any, **named: Any) -> Any:
        made = self._generate(*arguments, **named)
        self.codes = made[0][0]
        return made

    def _decoding(self, codes: Any) -> Any:
        made = self._decode(codes)
        self.sound = torch.from_numpy(made[0][0])
        return made

    def speak(self, talk: Talk) -> dict[str, torch.Tensor]:
        """Codes [frames, codebooks] and samples of one answer."""
        told = {"language": talk.language, "non_streaming_mode": talk.is_whole, **GREEDY}
        if talk.sound_length:
            self.tts.generate_voice_clone(
                talk.text,
                ref_audio=(sound_of(talk), 24_000),
                ref_text=talk.sound_text,
                x_vector_only_mode=talk.sound_text is None,
                **told,
            )
        elif talk.speaker is None:
            self.tts.generate_voice_design(talk.text, talk.instructions, **told)
        else:
            told["instruct"] = talk.instructions or None
            self.tts.generate_custom_voice(talk.text, talk.speaker, **told)
        heard = self.sound[len(self.sound) - SAMPLES_A_FRAME * len(self.codes) :]
        return {"codes": self.codes.to(torch.int32), "samples": heard[::STRIDE].float()}


@torch.inference_mode()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    recorded, hashes = {}, {}
    for model in MODELS:
        hashes[model] = checkpoint_hash(folder / model)
        recorder = Recorder(folder / model)
        for talk in talks(model):
            for what, tensor in recorder.speak(talk).items():
                recorded[key(model, talk, what)] = tensor.contiguous()
            print(model, talk.name, talk.is_whole, len(recorder.codes))  # noqa: T201
    save_file(recorded, Path(__file__).with_suffix(".safetensors"), hashes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
