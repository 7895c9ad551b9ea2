"""Sounds as they leave the gateway: one channel, at the model's rate, whatever their files are."""

import itertools

import av
import numpy as np
import numpy.typing as npt
import pytest
from support.media.recorded import (
    UNKNOWN,
    Wave,
    as_read,
    decoded_sound,
    encoded_sound,
    plain_wav,
    tones,
    without_length,
)

from omnistage.server.common.errors import ApiError
from omnistage.server.media import sound as sound_module
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.media.sound import MAX_RATE_HZ, RawAudio, SoundTrack
from omnistage.server.runtime.samples import SampleFormat

MODEL_HZ = 16_000


def heard(data: bytes | RawAudio, rate_hz: int = 0) -> npt.NDArray[np.float32]:
    """All samples of a file, at its own rate unless another is given."""
    return np.concatenate(list(SoundTrack(data, "part").samples(rate_hz)))


def resampled(mono: Wave, rate_hz: int, wanted_hz: int) -> npt.NDArray[np.float32]:
    """FFmpeg's resampling of one channel, all of it at once."""
    if rate_hz == wanted_hz:
        return mono.astype(np.float32)
    resampler = av.AudioResampler(format="fltp", rate=wanted_hz)
    frame = av.AudioFrame.from_ndarray(mono.astype(np.float32)[None], "fltp", "mono")
    frame.sample_rate = rate_hz
    pieces = [*resampler.resample(frame), *resampler.resample(None)]
    whole: npt.NDArray[np.float32] = np.concatenate([one.to_ndarray()[0] for one in pieces])
    return whole


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize(
    ("bits", "is_float"),
    [(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)],
)
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 44_100, 48_000])
def test_a_wav_s_samples_are_those_that_were_written(
    rate_hz: int, bits: int, is_float: bool, num_channels: int
) -> None:
    sound = tones(0.5, rate_hz, num_channels)
    data = plain_wav(sound, rate_hz, bits, is_float)
    mono = as_read(sound, bits, is_float).mean(axis=0)
    np.testing.assert_allclose(heard(data), mono, atol=1e-7)
    np.testing.assert_allclose(heard(data, MODEL_HZ), resampled(mono, rate_hz, MODEL_HZ), atol=2e-6)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100])
@pytest.mark.parametrize(
    ("riff_size", "data_size"),
    [*itertools.product((0, UNKNOWN), repeat=2), (None, 0), (None, UNKNOWN), (None, 10**8)],
)
def test_a_wav_that_does_not_say_how_long_it_is_is_heard_to_its_end(
    riff_size: int | None, data_size: int, rate_hz: int
) -> None:
    sound = tones(0.5, rate_hz)
    data = plain_wav(sound, rate_hz, riff_size=riff_size, data_size=data_size)
    assert np.array_equal(heard(data), heard(plain_wav(sound, rate_hz)))


@pytest.mark.parametrize("wanted_hz", [0, 8_000, 16_000, 24_000])
@pytest.mark.parametrize("rate_hz", [8_000, 24_000])
def test_samples_that_are_in_no_file_are_heard_as_those_of_a_wav(
    rate_hz: int, wanted_hz: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = (tones(1.3, rate_hz)[0] * 32767).astype(np.int16)
    wav = wav_header(SampleFormat(rate_hz), sound.nbytes) + sound.tobytes()
    expected = heard(wav, wanted_hz)
    monkeypatch.setattr(sound_module, "BLOCK_SAMPLES", 10_000)
    assert np.array_equal(heard(RawAudio(sound, rate_hz), wanted_hz), expected)


def test_samples_that_remember_what_was_read_are_resampled_once_a_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = (tones(0.5, 24_000)[0] * 32767).astype(np.int16)
    raw = RawAudio(sound, 24_000, remembers=True)
    read, again = SoundTrack(raw, "part"), SoundTrack(raw, "part")
    expected = np.concatenate(list(read.samples(MODEL_HZ)))
    assert np.array_equal(heard(raw, 8_000), heard(RawAudio(sound, 24_000), 8_000))
    heard(raw, MODEL_HZ)
    monkeypatch.setattr(sound_module, "_Mono", None)  # nothing can be resampled now
    assert np.array_equal(np.concatenate(list(again.samples(MODEL_HZ))), expected)
    assert (again.seconds, again.rate_hz) == (read.seconds, read.rate_hz)


def test_samples_that_are_in_no_file_are_bounded_and_must_be_there() -> None:
    with pytest.raises(ApiError, match="is longer than 3600 s"):
        heard(RawAudio(np.zeros(3601 * 100, np.int16), 100))
    with pytest.raises(ApiError, match="has no audio in it"):
        heard(RawAudio(np.zeros(0, np.int16), MODEL_HZ))


def test_a_wav_s_data_end_where_they_say() -> None:
    sound = tones(0.5, MODEL_HZ)
    data = plain_wav(sound, MODEL_HZ, data_size=2 * 4000)
    assert np.array_equal(heard(data), heard(plain_wav(sound, MODEL_HZ))[:4000])


FILES = {
    "flac": ("flac", "flac", "s16", {}),
    "flac in ogg": ("ogg", "flac", "s16", {}),
    "mp3": ("mp3", "libmp3lame", "fltp", {}),
    "mp3 without a header": ("mp3", "libmp3lame", "fltp", {"write_xing": "0"}),
    "ogg opus": ("ogg", "libopus", "flt", {}),
    "ogg vorbis": ("ogg", "vorbis", "fltp", {}),
    "webm opus": ("webm", "libopus", "flt", {}),
    "webm opus of a recorder": ("webm", "libopus", "flt", {"live": "1"}),
    "mkv flac of a recorder": ("matroska", "flac", "s16", {"live": "1"}),
    "m4a aac": ("ipod", "aac", "fltp", {}),
    "m4a alac": ("ipod", "alac", "s16p", {}),
    "mp4 in fragments": ("mp4", "aac", "fltp", {"movflags": "frag_keyframe+empty_moov"}),
    "aac": ("adts", "aac", "fltp", {}),
    "amr": ("amr", "libopencore_amrnb", "s16", {}),
    "aiff": ("aiff", "pcm_s16be", "s16", {}),
    "au": ("au", "pcm_s16be", "s16", {}),
    "caf": ("caf", "pcm_s16le", "s16", {}),
    "w64": ("w64", "pcm_s16le", "s16", {}),
    "mov": ("mov", "pcm_s16le", "s16", {}),
    "avi": ("avi", "pcm_s16le", "s16", {}),
    "mpegts": ("mpegts", "aac", "fltp", {}),
    "wma": ("asf", "wmav2", "fltp", {}),
    "flv": ("flv", "aac", "fltp", {}),
}
RATES = {"amr": (8_000,), "opus": (48_000,), "flv": (44_100,)}


# FFmpeg's encoders make no others.
ONLY_CHANNELS = {"ogg vorbis": (2,), "amr": (1,)}


@pytest.mark.parametrize(
    ("name", "num_channels"),
    [(name, count) for name in FILES for count in ONLY_CHANNELS.get(name, (1, 2))],
)
def test_a_file_s_samples_are_those_that_its_codec_decodes(name: str, num_channels: int) -> None:
    form, codec, sample_format, options = FILES[name]
    rates = next((rates for key, rates in RATES.items() if key in name), (16_000, 44_100))
    for rate_hz in rates:
        sound = tones(0.6, rate_hz, num_channels)
        data = encoded_sound(sound, rate_hz, form, codec, sample_format, options)
        mono = decoded_sound(data).mean(axis=0)
        assert abs(len(mono) - sound.shape[1]) < 0.2 * rate_hz  # it was written whole
        np.testing.assert_allclose(heard(data), mono, atol=1e-6)
        wanted = resampled(mono, rate_hz, MODEL_HZ)
        np.testing.assert_allclose(heard(data, MODEL_HZ), wanted, atol=2e-6)


def test_a_flac_of_unknown_length_is_heard_to_its_end() -> None:
    data = encoded_sound(tones(1, 24_000), 24_000, "flac", "flac", "s16")
    assert np.array_equal(heard(without_length(data)), heard(data))
    assert len(heard(data)) == 24_000


def test_a_sound_is_as_long_as_what_was_decoded() -> None:
    for data in (plain_wav(tones(1.5, 44_100), 44_100, data_size=0), CHAINED):
        sound = SoundTrack(data, "part")
        num_samples = sum(map(len, sound.samples(MODEL_HZ)))
        assert sound.seconds == pytest.approx(1.5)
        assert sound.rate_hz == MODEL_HZ
        assert num_samples == pytest.approx(1.5 * MODEL_HZ, abs=40)


def chained() -> bytes:
    """An Ogg whose second half has another rate and other channels."""
    first = encoded_sound(tones(1, 16_000), 16_000, "ogg", "flac", "s16")
    second = encoded_sound(tones(0.5, 8_000, 2), 8_000, "ogg", "flac", "s16")
    return first + second


CHAINED = chained()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    sound = tones(0.2, MODEL_HZ)
    sound[0, 100] = value
    with pytest.raises(ApiError, match="part has samples that are no numbers"):
        heard(plain_wav(sound, MODEL_HZ, 32, is_float=True), MODEL_HZ)


@pytest.mark.parametrize("rate_hz", [MAX_RATE_HZ + 1, 2_000_000_000])
def test_a_rate_for_which_a_resampler_would_be_too_large_is_refused(rate_hz: int) -> None:
    with pytest.raises(ApiError, match=f"has a sample rate of {rate_hz} Hz"):
        heard(plain_wav(tones(0.1, 8000), rate_hz), MODEL_HZ)


def test_an_hour_is_heard_and_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_module, "MAX_SAMPLES", 10**9)
    quiet = np.zeros((1, 3600 * 1000))
    hour = plain_wav(quiet, 1000, 8)
    assert sum(map(len, SoundTrack(hour, "part").samples(0))) == quiet.shape[1]
    longer = plain_wav(np.zeros((1, 3601 * 1000)), 1000, 8, riff_size=0, data_size=0)
    with pytest.raises(ApiError, match="part is longer than 3600 s"):
        heard(longer)


@pytest.mark.parametrize("data", [b"", b"hello", plain_wav(np.zeros((1, 0)), 8000)])
def test_what_has_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError, match=r"part (cannot be read|has no audio in it)"):
        heard(data)
