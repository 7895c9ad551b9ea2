"""Records what the voxcpm package speaks: voxcpm2.safetensors.

The checkpoint is a tiny one:

    omnistage tiny voxcpm2 FOLDER

and read with voxcpm 2.0.3 and einops beside our environment; what the package needs for files and
training alone is stubbed:

    pip install --no-deps --target PACKAGES voxcpm==2.0.3 einops
    PYTHONPATH=PACKAGES:.pkg:tests python -m references.voxcpm2 FOLDER

Its noise is drawn by torch's generator, ours is a hash of the seed and the patch's number: here it
gets ours. A sound is resampled by FFmpeg, as ours is, where librosa takes soxr. Recorded are all
latents, some of the samples of one decode of them, and a hash of the checkpoint.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
import transformers
from references.voxcpm2_talks import (
    MAX_PATCHES,
    STRIDE,
    TALKS,
    Talk,
    checkpoint_hash,
    key,
    sound_of,
)
from safetensors.torch import save_file

from omnistage.stages.voxcpm2.flow import normal_noise
from omnistage.stages.voxcpm2.voice_encoder import at_rate

STUBS = (
    *("librosa", "soundfile", "modelscope", "funasr", "wetext", "inflect", "gradio", "torchaudio"),
    *("datasets", "argbind", "simplejson", "sortedcontainers", "addict", "spaces", "matplotlib"),
)
for stub in STUBS:
    sys.modules.setdefault(stub, MagicMock())
sys.modules["voxcpm.core"] = MagicMock()  # it only loads from files

from voxcpm.model import voxcpm2  # noqa: E402
from voxcpm.modules.locdit import unified_cfm  # noqa: E402

# The class of voxcpm's own version of transformers, which reads tokenizer.json as it is.
voxcpm2.LlamaTokenizerFast = transformers.PreTrainedTokenizerFast


class NoiseByCounter:
    """`torch` as the flow sees it, with noise that is a hash."""

    def __init__(self) -> None:
        self.seed = self.patch = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def randn(self, shape: tuple[int, int, int], **_: object) -> torch.Tensor:
        """The next patch's, [1, latent, patch]."""
        size = shape[1] * shape[2]
        seed, patch = (torch.tensor([number]) for number in (self.seed, self.patch))
        self.patch += 1
        return normal_noise(seed, patch, size).view(shape)


class Recorder:
    """A model whose latents and whole sounds are kept."""

    def __init__(self, folder: Path) -> None:
        self.model = voxcpm2.VoxCPM2Model.from_local(str(folder), optimize=False, device="cpu")
        self.noise = NoiseByCounter()
        unified_cfm.torch = self.noise
        self.latents = torch.zeros(0)
        decode: Callable[[torch.Tensor], torch.Tensor] = self.model.audio_vae.decode
        self.model.audio_vae.decode = lambda latents: self._decoding(decode, latents)

    def _decoding(
        self, decode: Callable[[torch.Tensor], torch.Tensor], latents: torch.Tensor
    ) -> torch.Tensor:
        self.latents = latents
        return decode(latents)

    def speak(self, talk: Talk) -> dict[str, torch.Tensor]:
        """Latents [patches, patch, latent] and samples of one answer, without those before it."""
        self.noise.seed, self.noise.patch = talk.seed, 0
        sound = "sound" if talk.sound_length else ""
        samples = at_rate(sound_of(talk), 16_000) if sound else np.zeros(0, np.float32)
        voxcpm2.librosa.load = lambda *_, **__: (samples, 16_000)
        given = {"reference_wav_path": sound}
        if talk.sound_text is not None:
            given = {"prompt_wav_path": sound, "prompt_text": talk.sound_text}
        heard = self.model.generate(talk.spoken, max_len=MAX_PATCHES, **given)[0]
        size = self.model.patch_size
        patches = self.latents[0].T.unflatten(0, (-1, size))
        latents = patches[len(patches) - self.noise.patch :]
        ids = self.model.text_tokenizer((talk.sound_text or "") + talk.spoken)
        return {
            "latents": latents,
            "samples": heard[::STRIDE].float(),
            "ids": torch.tensor(ids, dtype=torch.int32),
        }


@torch.inference_mode()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    recorder, recorded = Recorder(folder), {}
    for talk in TALKS:
        for what, tensor in recorder.speak(talk).items():
            recorded[key(talk, what)] = tensor.contiguous().clone()
        print(talk.name, recorder.noise.patch)  # noqa: T201
    hashes = {"checkpoint": checkpoint_hash(folder)}
    save_file(recorded, Path(__file__).with_suffix(".safetensors"), hashes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
