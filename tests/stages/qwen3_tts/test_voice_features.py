"""Features of reference sounds: the package's numbers, made once, and kept."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from references.qwen3_tts_inputs import LENGTHS, NUM_CODEBOOKS, sound
from safetensors.torch import save

from omnistage.stages.qwen3_tts.sound_codes import SoundCodes
from omnistage.stages.qwen3_tts.speaker_encoder import SpeakerEncoder
from omnistage.stages.qwen3_tts.voice_features import VoiceEncoder, VoiceFeatures
from omnistage.stages.worker.failure import RequestError

SOUND = sound(5_000)
KEY = "a sound's"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each encoder that ran, in order."""
    names: list[str] = []
    for kind in (SpeakerEncoder, SoundCodes):
        forward: Callable[..., torch.Tensor] = kind.forward

        def noted(
            self: torch.nn.Module,
            given: torch.Tensor,
            forward: Callable[..., torch.Tensor] = forward,
        ) -> torch.Tensor:
            names.append(type(self).__name__)
            return forward(self, given)

        monkeypatch.setattr(kind, "forward", noted)
    return names


def same(one: VoiceFeatures, other: VoiceFeatures) -> bool:
    return np.array_equal(one.speaker, other.speaker) and np.array_equal(one.codes, other.codes)


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "features").iterdir())


@pytest.fixture(scope="module")
def voice_encoder(voice_model: Path) -> VoiceEncoder:
    return VoiceEncoder(str(voice_model))


@pytest.mark.parametrize("num_samples", LENGTHS)
def test_they_are_those_of_the_package(
    num_samples: int, voice_encoder: VoiceEncoder, recorded: dict[str, torch.Tensor]
) -> None:
    features = voice_encoder.features(sound(num_samples), str(num_samples), True)
    assert features.speaker.dtype == np.float32
    assert features.codes.dtype == np.int32
    expected = recorded[f"speaker.{num_samples}"].numpy()
    assert np.abs(features.speaker - expected).max() <= 1e-5
    assert expected.std() > 1
    codes = recorded[f"codes.{num_samples}"].numpy()
    assert codes.shape == (-(-num_samples // 1920), NUM_CODEBOOKS)
    assert np.array_equal(features.codes, codes)


def test_codes_are_made_only_where_they_are_wanted(voice_model: Path, computed: list[str]) -> None:
    encoder = VoiceEncoder(str(voice_model))
    vector = encoder.features(SOUND, KEY, wants_codes=False)
    assert computed == ["SpeakerEncoder"]
    assert vector.codes.shape == (0, NUM_CODEBOOKS)
    both = encoder.features(SOUND, KEY, wants_codes=True)
    assert computed == ["SpeakerEncoder", "SoundCodes"]
    assert len(both.codes) == 3
    assert np.array_equal(both.speaker, vector.speaker)
    for wants_codes in (True, False):
        again = encoder.features(SOUND, KEY, wants_codes)
        assert again.codes is both.codes
        assert again.speaker is both.speaker
    assert len(computed) == 2


def test_another_sound_has_other_features(voice_encoder: VoiceEncoder) -> None:
    one, other = (
        voice_encoder.features(sound(length), str(length), True) for length in LENGTHS[:2]
    )
    assert np.abs(one.speaker - other.speaker).max() > 0.01
    assert not np.array_equal(one.codes[:10], other.codes[:10])


def test_one_sound_is_computed_once_for_all_who_ask_at_once(
    voice_model: Path, computed: list[str]
) -> None:
    encoder = VoiceEncoder(str(voice_model))
    begin = threading.Barrier(6)

    def ask(_: int) -> VoiceFeatures:
        begin.wait(600)
        return encoder.features(SOUND, KEY, True)

    with ThreadPoolExecutor(6) as threads:
        answers = [*threads.map(ask, range(6))]
    assert computed == ["SpeakerEncoder", "SoundCodes"]
    assert all(answer.codes is answers[0].codes for answer in answers)


def test_they_are_kept_over_a_restart(
    voice_model: Path, tmp_path: Path, computed: list[str]
) -> None:
    before = VoiceEncoder(str(voice_model), str(tmp_path)).features(SOUND, KEY, True)
    computed.clear()
    after = VoiceEncoder(str(voice_model), str(tmp_path)).features(SOUND, KEY, True)
    assert not computed
    assert same(before, after)


def test_those_of_other_weights_are_not_found(
    voice_model: Path, other_voice_model: Path, tmp_path: Path
) -> None:
    own = VoiceEncoder(str(voice_model), str(tmp_path)).features(SOUND, KEY, True)
    other = VoiceEncoder(str(other_voice_model), str(tmp_path)).features(SOUND, KEY, True)
    assert not same(own, other)
    assert same(other, VoiceEncoder(str(other_voice_model)).features(SOUND, KEY, True))
    assert len(stored(tmp_path)) == 2


def test_a_sound_that_is_too_short_is_refused(voice_encoder: VoiceEncoder) -> None:
    with pytest.raises(RequestError, match=r"lasts 0\.053 s; a voice needs 0\.053 s") as caught:
        voice_encoder.features(sound(1279), "short", True)
    assert (caught.value.status, caught.value.param) == (400, "voice")
    shortest = voice_encoder.features(sound(1280), "long enough", True)
    assert np.isfinite(shortest.speaker).all()
    assert len(shortest.codes) == 1


def test_dummy_weights_need_only_the_configs(voice_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "speech_tokenizer/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((voice_model / name).read_bytes())
    with pytest.raises(FileNotFoundError, match="neither"):
        VoiceEncoder(str(tmp_path))
    features = VoiceEncoder(str(tmp_path), has_weights=False).features(SOUND, KEY, True)
    assert np.isfinite(features.speaker).all()
    assert features.codes.shape == (3, NUM_CODEBOOKS)


def test_a_model_without_an_encoder_of_voices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_tts"}')
    with pytest.raises(ValueError, match="makes no voice of a sound"):
        VoiceEncoder(str(tmp_path))


@pytest.mark.parametrize("damage", ["empty", "cut", "none", "names", "kind", "text"])
def test_a_file_that_cannot_be_read_is_made_anew(
    damage: str,
    voice_model: Path,
    tmp_path: Path,
    computed: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = VoiceEncoder(str(voice_model), str(tmp_path)).features(SOUND, KEY, True)
    (path,) = stored(tmp_path)
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "cut": whole[:-1],
        "none": whole,
        "names": whole.replace(b"codes", b"modes"),
        "kind": save({"speaker": torch.zeros(8, dtype=torch.bfloat16)}),
        "text": b"x" * 99,
    }
    path.write_bytes(damaged[damage])
    computed.clear()
    with caplog.at_level(logging.WARNING):
        after = VoiceEncoder(str(voice_model), str(tmp_path)).features(SOUND, KEY, True)
    assert same(before, after)
    assert bool(computed) == ("made anew" in caplog.text) == (damage != "none")
    assert path.read_bytes() == whole
