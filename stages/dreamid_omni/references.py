"""Faces and voices of a request, as the VAEs read them."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from omnistage.stages.dreamid_omni.audio_vae import RATE_HZ
from omnistage.stages.worker.failure import RequestError

MAX_REFERENCES = 2  # faces, and voices
FACES, VOICES = "input_reference", "audio_reference"  # fields of a request
SKIPPED_S, READ_S, LEAST_S = 1, 1, 0.1  # of a voice: its second second is read, or what there is
LEAST_SAMPLE = 1e-4  # what is quieter is silence


def face_pixels(face: Image.Image, height: int, width: int) -> Tensor:
    """Return float32 [1, 3, 1, height, width] in -1..1: the whole image, on white."""
    ratio = face.width / face.height
    is_wide = ratio > width / height
    size = (width, int(width / ratio)) if is_wide else (int(height * ratio), height)
    if not min(size):
        message = f"an image of {face.width} x {face.height} is too narrow"
        raise RequestError(400, message, param=FACES, code="invalid_value")
    small = face.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    edges = left, top, width - size[0] - left, height - size[1] - top
    bytes_of = np.array(ImageOps.expand(small, edges, fill="white"))
    pixels = torch.from_numpy(bytes_of).permute(2, 0, 1).float()
    return (pixels / 255 * 2 - 1)[None, :, None]


def voice_samples(voice: Tensor) -> Tensor:
    """Return float32 [1, n], the second second of samples [channels, all] at RATE_HZ.

    Raises RequestError for a voice that is too short, and for silence.
    """
    samples = voice.float().mean(dim=0)[SKIPPED_S * RATE_HZ :][: READ_S * RATE_HZ]
    if len(samples) < LEAST_S * RATE_HZ:
        message = f"must be at least {SKIPPED_S + LEAST_S} s: its second second is read"
        raise RequestError(400, message, param=VOICES, code="invalid_value")
    if samples.abs().max() < LEAST_SAMPLE:
        message = "its second second, which is read, is silent"
        raise RequestError(400, message, param=VOICES, code="invalid_value")
    return samples[None]


def check_number(given: Sequence[object], field: str) -> None:
    """Raise RequestError for no references or too many."""
    if not 1 <= len(given) <= MAX_REFERENCES:
        message = f"must be 1 to {MAX_REFERENCES}, not {len(given)}"
        raise RequestError(400, message, param=field, code="invalid_value")


def joined_latents(latents: Sequence[Tensor], axis: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return latents of several references as one, and the length of each."""
    return torch.cat(list(latents), dim=axis), tuple(one.shape[axis] for one in latents)
