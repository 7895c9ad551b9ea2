"""Audio of pipelines: where the rate is, which argument is the length, what samples leave."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderOobleck,
    AutoencoderSAME,
    LongCatAudioDiTVae,
)
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder
from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

from omnistage.stages.diffusion.makes import LENGTHS, call_of
from omnistage.stages.diffusion.request.sound import (
    audio_of,
    given_samples,
    length_for_warm_up,
    rate_of,
    sound_arguments,
    sound_of,
)
from omnistage.stages.worker.failure import RequestError

WAVE = np.linspace(-1, 1, 50, dtype=np.float32)
STEREO = np.stack([WAVE, -WAVE])
PCM = np.round(WAVE * 32767).astype(np.int16)
STEREO_PCM = np.stack([PCM, np.round(-WAVE * 32767).astype(np.int16)], -1)


def parts(**made: object) -> object:
    """A pipeline of these parts."""
    return SimpleNamespace(**made)


def oobleck(rate: int) -> AutoencoderOobleck:
    return AutoencoderOobleck(
        encoder_hidden_size=4,
        downsampling_ratios=[2, 2],
        channel_multiples=[1, 1],
        decoder_channels=4,
        decoder_input_channels=4,
        sampling_rate=rate,
    )


def longcat(rate: int) -> LongCatAudioDiTVae:
    return LongCatAudioDiTVae(
        channels=4, c_mults=[1, 1], strides=[2], latent_dim=4, encoder_latent_dim=8,
        sample_rate=rate,
    )  # fmt: skip


def ltx2() -> object:
    """Its mel spectra are of 16 kHz, its samples of 48."""
    vocoder = LTX2Vocoder(
        in_channels=16, hidden_channels=32, out_channels=2, upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2], resnet_kernel_sizes=[3], resnet_dilations=[[1, 3, 5]],
        output_sampling_rate=48000,
    )  # fmt: skip
    audio_vae = AutoencoderKLLTX2Audio(
        base_channels=4, output_channels=2, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None,
        in_channels=2, resolution=32, latent_channels=2, norm_type="pixel", dropout=0.0,
        causality_axis="height", mid_block_add_attention=False, sample_rate=16000,
        mel_hop_length=160, is_causal=True, mel_bins=8,
    )  # fmt: skip
    return parts(vae=SimpleNamespace(config={}), audio_vae=audio_vae, vocoder=vocoder)


SAME: dict[str, Any] = {
    "patch_size": 4,
    "encoder_channels": 32,
    "encoder_c_mults": (1,),
    "encoder_strides": (2,),
    "encoder_transformer_depths": (1,),
    "latent_dim": 8,
    "dim_heads": 32,
    "sampling_rate": 22050,
}
RATES: dict[str, tuple[Callable[[], object], int | None]] = {
    "StableAudioPipeline": (lambda: parts(vae=oobleck(44100)), 44100),
    "AceStepPipeline": (lambda: parts(vae=oobleck(48000), sample_rate=48000), 48000),
    "StableAudio3Pipeline": (lambda: parts(vae=AutoencoderSAME(**SAME)), 22050),
    "LongCatAudioDiTPipeline": (lambda: parts(vae=longcat(24000), sample_rate=24000), 24000),
    "AudioLDM2Pipeline": (
        lambda: parts(
            vae=SimpleNamespace(config={}),
            vocoder=SpeechT5HifiGan(SpeechT5HifiGanConfig(sampling_rate=16000)),
        ),
        16000,
    ),
    "LTX2Pipeline": (ltx2, 48000),
    "Kandinsky6TI2VAPipeline": (lambda: parts(audio_sample_rate=44100, vocoder=None), 44100),
    "Cosmos3OmniPipeline": (
        lambda: parts(sound_tokenizer=SimpleNamespace(config=SimpleNamespace(sampling_rate=8000))),
        8000,
    ),
    "WanPipeline": (lambda: parts(vae=SimpleNamespace(config=SimpleNamespace())), None),
}


@pytest.mark.parametrize("name", RATES)
def test_the_rate_of_each_class_is_that_of_its_samples(name: str) -> None:
    assert call_of(name) is not None
    make, rate = RATES[name]
    assert rate_of(make(), needs_one=False) == rate


def test_a_pipeline_of_audio_without_a_rate_does_not_start() -> None:
    with pytest.raises(ValueError, match="sampling rate of SimpleNamespace was not found"):
        rate_of(parts(), needs_one=True)


@pytest.mark.parametrize(
    ("made", "pcm"),
    [
        (STEREO[None], STEREO_PCM),
        (torch.tensor(STEREO)[None], STEREO_PCM),
        ([STEREO], STEREO_PCM),
        ([torch.tensor(STEREO)], STEREO_PCM),
        (STEREO.T, STEREO_PCM),
        (STEREO, STEREO_PCM),
        (WAVE[None, None], PCM),
        (np.stack([WAVE] * 3), PCM),  # three sounds of mono
        (WAVE, PCM),
        ([WAVE], PCM),
        (WAVE.tolist(), PCM),
        (PCM, PCM),
        (STEREO_PCM, STEREO_PCM),
        (torch.tensor(STEREO, dtype=torch.float64), STEREO_PCM),
        (np.array([2.0, -2.0, np.nan]), np.array([32767, -32767, 0], np.int16)),
    ],
)
def test_samples_of_each_form_leave_as_pcm(made: object, pcm: Any) -> None:
    found = audio_of(made)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, pcm)
    for name in ("audios", "audio", "sound"):
        np.testing.assert_array_equal(audio_of({name: made}), pcm)


def test_bfloat16_is_read() -> None:
    made = {"audios": torch.tensor(STEREO, dtype=torch.bfloat16)[None]}
    np.testing.assert_allclose(audio_of(made), STEREO_PCM, atol=200)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"images": 1}, "returned images only"),
        ({}, "returned nothing only"),
        ({"audios": np.zeros((1, 3, 50))}, r"shape \[1, 3, 50\]"),
        ({"audios": np.zeros((1, 2, 0))}, r"shape \[1, 2, 0\]"),
        ({"audios": []}, r"shape \[0\]"),
        ({"audios": np.zeros(5, np.int64)}, "audio of int64"),
        ({"audios": "loud"}, "audio of"),
    ],
)
def test_audio_that_is_none_is_refused(made: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        audio_of(made)
    assert refusal.value.status == 500


def test_a_video_may_have_no_audio() -> None:
    assert sound_of({"frames": 1, "audio": None}) is None
    assert sound_of([1]) is None
    np.testing.assert_array_equal(sound_of({"frames": 1, "audio": STEREO[None]}), STEREO_PCM)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("StableAudioPipeline", {"audio_end_in_s": 5.5, "audio_start_in_s": 1.5}),
        ("StableAudio3Pipeline", {"duration": 4}),
        ("StableAudio3AudioToAudioPipeline", {"duration": 4}),
        ("StableAudio3InpaintPipeline", {"duration": 4}),
        ("AceStepPipeline", {"audio_duration": 4}),
        ("LongCatAudioDiTPipeline", {"audio_duration_s": 4}),
        ("AudioLDM2Pipeline", {"audio_length_in_s": 4}),
    ],
)
def test_the_length_is_the_argument_of_the_class(name: str, length: dict[str, float]) -> None:
    call = call_of(name)
    assert call is not None
    known = call.parameters
    start = {"audio_start": 1.5} if "audio_start_in_s" in length else {}
    assert sound_arguments(known, {"audio_length": 4, **start}) == length
    assert sound_arguments(known, {}) == {}
    assert set(length_for_warm_up(known)) == set(LENGTHS) & set(length)


@pytest.mark.parametrize(
    ("field", "value"), [("audio_length", 4), ("audio_start", 1), ("lyrics", "La la")]
)
def test_a_field_that_a_pipeline_does_not_take_is_named(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"this pipeline takes no {field}") as refusal:
        sound_arguments({"prompt"}, {field: value})
    assert refusal.value.param == field


def test_lyrics_and_the_switch_of_a_video_s_audio_are_passed_on() -> None:
    assert sound_arguments({"lyrics"}, {"lyrics": "La"}) == {"lyrics": "La"}
    assert sound_arguments({"sample_audio"}, {"audio": False}) == {"sample_audio": False}
    assert sound_arguments({"enable_sound"}, {"audio": True}) == {"enable_sound": True}
    assert sound_arguments({"prompt"}, {"audio": False}) == {}


@pytest.mark.parametrize(("channels", "own_channels"), [(1, 2), (2, 2), (2, 1), (1, 1), (2, None)])
@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_given_audio_has_the_rate_and_the_channels_of_the_pipeline(
    rate: int, channels: int, own_channels: int | None
) -> None:
    times = np.arange(rate) / rate
    wave = np.sin(2 * np.pi * 440 * times).astype(np.float32)
    config = SimpleNamespace(sampling_rate=44_100, audio_channels=own_channels)
    made = given_samples(
        parts(vae=SimpleNamespace(config=config)), np.stack([wave] * channels), rate
    )
    assert made.dtype == torch.float32
    assert made.shape[0] == (own_channels or channels)
    assert abs(made.shape[1] - 44_100) <= 32
    wanted = np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)
    np.testing.assert_allclose(made[-1, 1000:40_000], wanted[1000:40_000], atol=0.01)
