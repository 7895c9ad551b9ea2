"""A sound that is spoken with: as stages take it, and what is refused."""

import io
import struct
import wave

import numpy as np
import pytest
from support.media.sounds import data_url, tone, wav_of

from omnistage.server.common.errors import ApiError
from omnistage.server.tasks.speech.reference import (
    RATE_HZ,
    Reference,
    key_of,
    medium_of,
    samples_of,
)


def test_mono_samples_at_the_right_rate_are_unchanged() -> None:
    given = np.random.default_rng(0).integers(-30_000, 30_000, RATE_HZ).astype(np.int16)
    samples = samples_of(wav_of(given), "ref_audio")
    assert samples.dtype == np.float32
    assert np.array_equal(samples * 32768, given)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
def test_other_rates_are_resampled(rate_hz: int) -> None:
    samples = samples_of(wav_of(tone(1.0, rate_hz), rate_hz), "ref_audio")
    assert len(samples) == pytest.approx(RATE_HZ, abs=2)
    expected = tone(1.0) / 32768
    assert np.abs(samples[2000:-2000] - expected[2000 : len(samples) - 2000]).max() < 0.01


def test_channels_are_mixed_by_their_mean() -> None:
    left = tone()
    samples = samples_of(wav_of(np.stack([left, np.zeros_like(left)], axis=1)), "ref_audio")
    assert np.allclose(samples, left / 65536, atol=1e-6)


def test_a_key_is_the_same_for_the_same_samples_alone() -> None:
    samples = samples_of(wav_of(tone()), "ref_audio")
    again = samples_of(wav_of(np.stack([tone()] * 2, axis=1)), "ref_audio")
    assert Reference.of(samples, None).key == key_of(again)
    assert key_of(samples) != key_of(samples[1:])
    assert len(key_of(samples)) == 64


def float_wav(value: float) -> bytes:
    data = np.full(RATE_HZ, value, "<f4").tobytes()
    head = struct.pack("<HHIIHH", 3, 1, RATE_HZ, 4 * RATE_HZ, 4, 32)
    chunks = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(chunks) + len(data)) + chunks + data


def odd_rate() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 1, 0, "NONE", ""))
        sound.writeframes(tone(1.0).tobytes())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "cannot be read"),
        (b"x" * 1000, "cannot be read"),
        (wav_of(tone(0.4)), "is shorter than 0.5 s"),
        (wav_of(tone(61, 8_000), 8_000), "is longer than 60 s"),
        (odd_rate(), "has a sample rate of"),
        (wav_of(np.zeros(RATE_HZ, np.int16)), "is silent"),
        (float_wav(float("nan")), "has samples that are no numbers"),
    ],
)
def test_what_is_no_voice_is_refused_by_the_name_of_its_field(data: bytes, problem: str) -> None:
    with pytest.raises(ApiError, match=f"ref_audio {problem}") as caught:
        samples_of(data, "ref_audio")
    assert (caught.value.status, caught.value.param) == (400, "ref_audio")


@pytest.mark.parametrize("url", ["", "voice.wav", "ftp://a/b", "data:audio/wav,x", "data:;base64"])
def test_a_url_that_nobody_reads_is_refused(url: str) -> None:
    with pytest.raises(ApiError) as caught:
        medium_of(url, "ref_audio")
    assert caught.value.param == "ref_audio"


def test_a_data_url_and_a_place_elsewhere_are_taken() -> None:
    assert medium_of(data_url(b"x"), "ref_audio").encoded == "eA=="
    assert medium_of("https://a.example/b.wav", "ref_audio").url == "https://a.example/b.wav"


@pytest.mark.parametrize("rate_hz", [1, 384_001, 390_000_007, (1 << 31) - 1])
def test_a_rate_that_no_microphone_has_is_refused_before_it_is_resampled(rate_hz: int) -> None:
    """A resampler's filter grows with the rate: a file of some bytes would take gigabytes."""
    with pytest.raises(ApiError) as refused:
        samples_of(wav_of(tone(1.0), rate_hz), "ref_audio")
    assert (refused.value.status, refused.value.param) == (400, "ref_audio")
