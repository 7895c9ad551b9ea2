"""Sounds in containers of other things, as vLLM gets them."""

import os

import numpy as np
import pytest
from support.prompts import data_url, sound, sound_part, video_bytes
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

from omnistage.stages.vllm.sound import CONNECTOR, SoundConnector, sound_of, use_sound_connector

SAMPLES = sound(16000)


@pytest.mark.parametrize("form", ["matroska", "mov"])
async def test_a_video_s_samples_are_those_in_its_file(form: str) -> None:
    url = data_url("video/mp4", video_bytes(4, 32, SAMPLES, form))
    heard, rate = await SoundConnector().fetch_audio_async(url)
    assert rate == 16000
    assert heard.dtype == np.float32
    assert np.array_equal(heard, SAMPLES.astype(np.float32) / 32768)


async def test_a_sound_file_is_read_by_vllm() -> None:
    data = sound_part(SAMPLES)["input_audio"]["data"]
    heard, rate = await SoundConnector().fetch_audio_async(f"data:audio/wav;base64,{data}")
    assert rate == 16000
    np.testing.assert_allclose(heard, SAMPLES / 32768, atol=1e-4)


def test_what_has_no_sound_is_refused() -> None:
    with pytest.raises(ValueError, match="no sound in it"):
        sound_of(video_bytes(4, 32))
    with pytest.raises(ValueError, match="cannot be read"):
        sound_of(b"hello")


def test_a_sound_longer_than_vllm_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_DECODE_DURATION_S", "0")
    with pytest.raises(ValueError, match="longer than 0 s"):
        sound_of(video_bytes(4, 32, SAMPLES, "matroska"))


def test_vllm_fetches_with_our_connector_unless_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_MEDIA_CONNECTOR", raising=False)
    use_sound_connector()
    assert os.environ["VLLM_MEDIA_CONNECTOR"] == CONNECTOR
    assert isinstance(MEDIA_CONNECTOR_REGISTRY.load(CONNECTOR), SoundConnector)
    monkeypatch.setenv("VLLM_MEDIA_CONNECTOR", "http")
    use_sound_connector()
    assert os.environ["VLLM_MEDIA_CONNECTOR"] == "http"
