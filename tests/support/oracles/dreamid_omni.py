"""DreamID-Omni's own code, recorded, and the calls and requests that must equal it."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from references.dreamid_omni_scenes import NEGATIVE, SCENES, Scene, files_of, hash_of, voice
from safetensors import safe_open

RECORDED = Path(__file__).parents[2] / "references" / "dreamid_omni.safetensors"
SAMPLES_APART = 1e-4


class RecordedScenes:
    """The recorded videos of a checkpoint; another one is an AssertionError."""

    def __init__(self, folder: Path) -> None:
        with safe_open(RECORDED, "pt") as file:
            assert file.metadata()["checkpoint"] == hash_of(folder), (
                "record tests/references/dreamid_omni.py"
            )
            self._tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def frames(self, name: str) -> npt.NDArray[np.uint8]:
        """Return [frames, height, width, 3]."""
        frames: npt.NDArray[np.uint8] = self._tensors[f"{name}.frames"].numpy()
        return frames

    def samples(self, name: str) -> npt.NDArray[np.float32]:
        """Return [n]."""
        samples: npt.NDArray[np.float32] = self._tensors[f"{name}.samples"].numpy()
        return samples

    def check(self, name: str, made: Any) -> None:
        """Assert that a call made the recorded video: a byte's step and 1e-4 apart at most."""
        (frames,), (samples,) = made.frames, made.audio.numpy()
        pixels = (frames * 255).round()
        assert np.abs(pixels - self.frames(name)).max() <= 1
        assert pixels.std() > 10
        assert np.abs(samples[0] - self.samples(name)).max() < SAMPLES_APART
        assert samples.std() > 0.01


def extra_of(scene: Scene) -> dict[str, Any]:
    """Return the arguments of a scene's call that are no fields of a request."""
    names = "image_guidance_scale", "audio_guidance_scale", "reference_audio_guidance_scale"
    return {
        "audio_negative_prompt": NEGATIVE[1],
        **dict(zip(names, scene.scales[1:], strict=True)),
    }


def call_of(name: str) -> dict[str, Any]:
    """Return the arguments of the pipeline's call for a scene."""
    scene = SCENES[name]
    faces, _ = files_of(scene)
    voices = [voice(one, number) for number, one in enumerate(scene.voices)]
    return {
        "prompt": scene.prompt,
        "negative_prompt": NEGATIVE[0],
        "image": [Image.open(BytesIO(one)) for one in faces],
        "reference_audios": [torch.from_numpy(one / np.float32(32768))[None] for one in voices],
        "height": scene.size[0],
        "width": scene.size[1],
        "num_frames": scene.num_frames,
        "num_inference_steps": scene.num_steps,
        "guidance_scale": scene.scales[0],
        "generator": torch.Generator().manual_seed(scene.seed),
        "output_type": "np",
        **extra_of(scene),
    }
