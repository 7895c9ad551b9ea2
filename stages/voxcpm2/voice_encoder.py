"""Latents of reference audio for the talker, as patches."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from omnistage.stages.device.resampling import resampled
from omnistage.stages.speech.voice_cache import Features, VoiceCache, identity_of
from omnistage.stages.voxcpm2.settings import load_settings
from omnistage.stages.voxcpm2.vae_weights import load_encoder
from omnistage.stages.worker.failure import RequestError

SAMPLE_RATE_HZ = 24_000  # of the sounds that come
# Two ways to fill up the last patch with silence: behind a sound that is another speech's, before
# one that the speech goes on from.
REFERENCE, CONTINUED = "reference", "continued"

Latents = npt.NDArray[np.float32]


def at_rate(sound: npt.NDArray[np.float32], rate_hz: int) -> npt.NDArray[np.float32]:
    """Mono samples [n] at 24 kHz as samples at another rate."""
    return resampled(sound[None], SAMPLE_RATE_HZ, rate_hz)[0]


class LatentEncoder:
    """Makes latents of sounds, of each sound once; any thread may ask for them."""

    def __init__(self, model: str, folder: str = "", *, has_weights: bool = True) -> None:
        """Load the encoder of a checkpoint folder or hub name, in float32 on the CPU.

        `folder`: where latents are kept over a restart; by default they are not.
        """
        settings = load_settings(model)
        self._rate_hz = settings.audio_vae_config.sample_rate
        self._encoder = load_encoder(model, has_weights=has_weights)
        self._patch_size, self._latent_size = settings.patch_size, settings.feat_dim
        self._cache = VoiceCache(
            {REFERENCE: np.float32, CONTINUED: np.float32},
            identity_of([self._encoder]),
            Path(folder) if folder else None,
        )

    def known(self, key: str, way: str) -> Latents | None:
        """Returns what was made of a sound before, in one of the two ways."""
        features = self._cache.get(key, way)
        return None if features is None else features[way]

    def latents(self, sound: npt.NDArray[np.float32], key: str, way: str) -> Latents:
        """Returns the patches [n, patch, latent] of mono samples [n] at 24 kHz with this key.

        Raises RequestError for silence.
        """
        return self._cache.get_or_make(key, lambda: self._make(sound, key, way), way)[way]

    def _make(self, sound: npt.NDArray[np.float32], key: str, way: str) -> Features:
        if not sound.any():
            raise RequestError(
                400, "the reference sound is silent", param="voice", code="invalid_value"
            )
        none = np.zeros((0, self._patch_size, self._latent_size), np.float32)
        kept: Features = self._cache.get(key) or {REFERENCE: none, CONTINUED: none}
        made = self._encoded(at_rate(sound, self._rate_hz), is_padded_left=way == CONTINUED)
        return {**kept, way: made}

    @torch.inference_mode()
    def _encoded(self, sound: npt.NDArray[np.float32], is_padded_left: bool) -> Latents:
        samples = torch.from_numpy(sound)
        missing = -len(sound) % (self._patch_size * self._encoder.samples_per_latent)
        samples = functional.pad(samples, (missing, 0) if is_padded_left else (0, missing))
        means = self._encoder(samples[None])[0]
        patches = means.T.unflatten(0, (-1, self._patch_size))
        return np.ascontiguousarray(patches.numpy())
