"""Videos of which DreamID-Omni's own code was recorded, and the checkpoint that they are for."""

import hashlib
import wave
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from references.bagel_inputs import image
from safetensors.torch import load_file

FUSION = "DreamID_Omni/dreamid_omni.safetensors"
PICKLES = (
    "MMAudio/ext_weights/best_netG.pt",
    "MMAudio/ext_weights/v1-16.pth",
    "Wan2.2-TI2V-5B/Wan2.2_VAE.pth",
    "Wan2.2-TI2V-5B/models_t5_umt5-xxl-enc-bf16.pth",
)
TOKENIZER = "Wan2.2-TI2V-5B/google/umt5-xxl"
RATE_HZ = 16_000


@dataclass(frozen=True)
class Scene:
    """A request: sides of its faces (width, height) and seconds of its voices.

    `scales`: of text and faces, then for the audio of text and voices.
    """

    prompt: str
    seed: int
    num_steps: int
    size: tuple[int, int]  # height, width
    num_frames: int
    faces: tuple[tuple[int, int], ...]
    voices: tuple[float, ...]
    scales: tuple[float, float, float, float] = (3.0, 1.5, 4.0, 2.0)


NEGATIVE = ("jitter, bad hands, blur, distortion", "robotic, muffled, echo, distorted")
SCENES = {
    "one": Scene("<sub1> says <S>Good morning.<E>", 1, 3, (64, 96), 9, ((70, 50),), (2.5,)),
    "same size": Scene("<sub1> sings &amp; waves", 2, 4, (64, 96), 9, ((40, 90),), (3.0,)),
    "two": Scene(
        "<sub1>  asks <S>Why?<E>\n<sub2> laughs",
        3,
        4,
        (96, 64),
        5,
        ((64, 64), (30, 20)),
        (2.0, 2.2),
    ),
    "longer": Scene("<sub1> is silent", 4, 2, (64, 64), 13, ((96, 96),), (2.1,)),
    "other scales": Scene(
        "<sub1> and <sub2>", 5, 2, (32, 64), 5, ((50, 60), (60, 50)), (1.5,), (2.0, 1.0, 3.0, 0.5)
    ),
}


def voice(seconds: float, number: int) -> npt.NDArray[np.int16]:
    """Return samples [n] of a voice: a tone that grows, and noise."""
    count = int(seconds * RATE_HZ)
    times = np.arange(count) / RATE_HZ
    noise = np.random.default_rng(number).normal(0, 0.02, count)
    tone = (0.1 + 0.05 * times) * np.sin(2 * np.pi * (150 + 70 * number) * times)
    samples: npt.NDArray[np.int16] = ((tone + noise).clip(-1, 1) * 32767).astype(np.int16)
    return samples


def voice_file(seconds: float, number: int) -> bytes:
    """Return a voice as a WAV file."""
    made = BytesIO()
    with wave.open(made, "wb") as file:
        file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        file.writeframes(voice(seconds, number).tobytes())
    return made.getvalue()


def face_file(size: tuple[int, int], number: int) -> bytes:
    """Return a face as a PNG file."""
    made = BytesIO()
    image(size, number).save(made, "PNG")
    return made.getvalue()


def files_of(scene: Scene) -> tuple[list[bytes], list[bytes]]:
    """Return the files of a scene's faces and voices."""
    faces = [face_file(one, number) for number, one in enumerate(scene.faces)]
    return faces, [voice_file(one, number) for number, one in enumerate(scene.voices)]


def hash_of(folder: Path) -> str:
    """Return a checkpoint's hash, of its tensors and its tokenizer."""
    made = hashlib.sha256((folder / TOKENIZER / "tokenizer.json").read_bytes())
    read = [load_file(folder / FUSION)]
    read += [torch.load(folder / name, weights_only=True) for name in PICKLES]
    for weights in read:
        flat = weights.get("generator", weights)
        for name in sorted(flat):
            made.update(name.encode() + flat[name].numpy().tobytes())
    return made.hexdigest()
