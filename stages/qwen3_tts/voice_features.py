"""Features of reference audio for the talker: the vector of its voice, and its codes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.qwen3_tts.sound_codes import load_sound_codes
from omnistage.stages.qwen3_tts.speaker_encoder import (
    SAMPLE_RATE_HZ,
    SpeakerEncoder,
    SpeakerEncoderConfig,
    mel_frames,
)
from omnistage.stages.speech.voice_cache import Features, VoiceCache, identity_of
from omnistage.stages.vocoder.checkpoint import read_config, read_part
from omnistage.stages.worker.failure import RequestError

PREFIX = "speaker_encoder."
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class VoiceFeatures:
    """The vector of a voice [hidden], and the codes of its sound [frames, codebooks] or none."""

    speaker: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]

    @classmethod
    def of(cls, features: Features) -> Self:
        """Returns those that are kept."""
        return cls(features["speaker"], features["codes"])


def needed(wants_codes: bool) -> tuple[str, ...]:
    """Return the features without which what is kept of a sound is not enough."""
    return ("codes",) if wants_codes else ()


class VoiceEncoder:
    """Makes features of sounds, of each sound once; any thread may ask for them."""

    def __init__(
        self, model: str, folder: str = "", device: torch.device = CPU, *, has_weights: bool = True
    ) -> None:
        """Load both encoders of a checkpoint folder or hub name, in float32.

        `folder`: where features are kept over a restart; by default they are not.
        """
        self._device = device
        self._config = _speaker_encoder_config(model)
        self._speaker = _load_speaker_encoder(model, self._config, device, has_weights)
        self._codes = load_sound_codes(model, device, has_weights=has_weights)
        identity = identity_of([self._speaker, self._codes])
        self._no_codes = np.zeros((0, self._codes.num_codebooks), np.int32)
        self._cache = VoiceCache(
            {"speaker": np.float32, "codes": np.int32},
            f"{identity} {self._codes.num_codebooks}",
            Path(folder) if folder else None,
        )

    def known(self, key: str, wants_codes: bool) -> VoiceFeatures | None:
        """Returns what was made of a sound before, if that is enough."""
        features = self._cache.get(key, *needed(wants_codes))
        return None if features is None else VoiceFeatures.of(features)

    def features(
        self, sound: npt.NDArray[np.float32], key: str, wants_codes: bool
    ) -> VoiceFeatures:
        """Returns the features of mono samples [n] at 24 kHz with this key; without codes if not
        wanted.

        Raises RequestError for a sound that is too short.
        """
        make = partial(self._make, sound, key, wants_codes)
        return VoiceFeatures.of(self._cache.get_or_make(key, make, *needed(wants_codes)))

    @torch.inference_mode()
    def _make(self, sound: npt.NDArray[np.float32], key: str, wants_codes: bool) -> Features:
        self._check(sound)
        samples = torch.tensor(sound, dtype=torch.float32, device=self._device)
        without_codes = self.known(key, wants_codes=False)
        if without_codes is None:
            vector = self._speaker(mel_frames(samples, self._config.mel_dim))
            speaker = vector.cpu().numpy()
        else:
            speaker = without_codes.speaker
        codes = self._no_codes
        if wants_codes:
            codes = self._codes(samples).cpu().numpy()
        return {"speaker": speaker, "codes": codes}

    def _check(self, sound: npt.NDArray[np.float32]) -> None:
        shortest = self._config.min_samples
        if len(sound) < shortest:
            lasts, least = (count / SAMPLE_RATE_HZ for count in (len(sound), shortest))
            message = f"the reference sound lasts {lasts:.3f} s; a voice needs {least:.3f} s"
            raise RequestError(400, message, param="voice", code="invalid_value")


def _speaker_encoder_config(model: str) -> SpeakerEncoderConfig:
    settings = read_config(model)
    if "speaker_encoder_config" not in settings:
        raise ValueError(f"{model} has no speaker_encoder_config: it makes no voice of a sound")
    return msgspec.convert(settings["speaker_encoder_config"], SpeakerEncoderConfig)


def _load_speaker_encoder(
    model: str, config: SpeakerEncoderConfig, device: torch.device, has_weights: bool
) -> SpeakerEncoder:
    encoder = SpeakerEncoder(config)
    if has_weights:
        encoder.load_state_dict(dict(read_part(model, PREFIX, CPU)))
    else:
        fill_with_dummy_weights(encoder.named_parameters())
    return encoder.float().to(device).train(False).requires_grad_(False)
