"""G.711 and PCM against FFmpeg, by samples."""

from typing import Any

import av
import numpy as np
import pytest

from omnistage.server.media.audio.frames import audio_frame
from omnistage.server.realtime.voice.formats import (
    G711_SAMPLES,
    PCM_SAMPLES,
    FormatName,
    Resampler,
    Samples,
    UserAudio,
    decoded,
    encoded,
    output_encoder,
    samples_of,
)
from omnistage.server.runtime.samples import SampleFormat

FORMATS: tuple[FormatName, ...] = ("audio/pcm", "audio/pcmu", "audio/pcma")
CODECS = {"audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}


def sweep(rate_hz: int, seconds: float = 1.0) -> Samples:
    """From 100 Hz to 3 kHz."""
    times = np.arange(round(rate_hz * seconds)) / rate_hz
    phase = 2 * np.pi * (100 * times + 1450 * times**2 / seconds)
    return (20_000 * np.sin(phase)).astype(np.int16)


def codec(name: str, mode: Any) -> Any:
    context: Any = av.CodecContext.create(name, mode)
    context.sample_rate, context.layout = 8000, "mono"
    if mode == "w":
        context.format = "s16"
    return context


def resampled(samples: Samples, source: SampleFormat, rate_hz: int) -> Samples:
    """By PyAV, all at once, without what it holds back."""
    resampler = av.AudioResampler("s16", "mono", rate_hz)
    frame = audio_frame(samples.tobytes(), 0, source)
    return np.concatenate([part.to_ndarray()[0] for part in resampler.resample(frame)])


@pytest.mark.parametrize("form", CODECS)
def test_g711_is_ffmpegs(form: str) -> None:
    samples = sweep(8000)
    packets = codec(CODECS[form], "w").encode(audio_frame(samples.tobytes(), 0, G711_SAMPLES))
    data = b"".join(map(bytes, packets))
    assert encoded(samples, form) == data
    frames = codec(CODECS[form], "r").decode(av.Packet(data))
    expected = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    assert np.array_equal(decoded(data, form), expected)


@pytest.mark.parametrize("form", FORMATS)
def test_every_sample_survives_being_decoded_and_encoded(form: FormatName) -> None:
    every = np.arange(256, dtype=np.uint8).tobytes() * 2
    again = encoded(decoded(every, form), form)
    same = np.frombuffer(again, np.uint8) == np.frombuffer(every, np.uint8)
    # mu-law has a positive and a negative zero.
    assert (~same).sum() == (2 if form == "audio/pcmu" else 0)
    assert np.array_equal(decoded(again, form), decoded(every, form))


@pytest.mark.parametrize(("source", "rate_hz"), [(PCM_SAMPLES, 16_000), (G711_SAMPLES, 16_000)])
@pytest.mark.parametrize("size", [1, 160, 480, 4801])
def test_audio_in_pieces_is_resampled_as_a_whole(
    source: SampleFormat, rate_hz: int, size: int
) -> None:
    samples = sweep(source.rate_hz, 0.25)
    resampler = Resampler(source, rate_hz)
    starts = range(0, len(samples), size)
    made = np.concatenate([resampler.add(samples[start : start + size]) for start in starts])
    expected = resampled(samples, source, rate_hz)
    assert len(made) == len(expected) or abs(len(made) - len(expected)) <= 32
    assert np.array_equal(made[: len(expected)], expected[: len(made)])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("made", [PCM_SAMPLES, SampleFormat(44_100, 2)])
def test_an_answer_has_the_format_and_the_length_asked_for(
    form: FormatName, made: SampleFormat
) -> None:
    samples = np.repeat(sweep(made.rate_hz), made.num_channels)
    encoder = output_encoder(form, 1.0, made)
    data = encoder.encode(samples.tobytes()) + encoder.finish()
    sound = UserAudio(data, form)
    assert sound.ms == pytest.approx(1000, abs=3)
    if form == "audio/pcm" and made == PCM_SAMPLES:
        assert data == samples.tobytes()


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.5])
def test_speed_changes_the_length(speed: float) -> None:
    encoder = output_encoder("audio/pcm", speed, PCM_SAMPLES)
    data = encoder.encode(sweep(24_000).tobytes()) + encoder.finish()
    assert UserAudio(data, "audio/pcm").ms == pytest.approx(1000 / speed, rel=0.01)


@pytest.mark.parametrize("form", FORMATS)
def test_a_sound_is_a_wav_file_at_its_own_rate(form: FormatName) -> None:
    rate_hz = samples_of(form).rate_hz
    wav = UserAudio(encoded(sweep(rate_hz), form), form).to_wav()
    assert wav[:4] == b"RIFF"
    assert int.from_bytes(wav[24:28], "little") == rate_hz
    assert int.from_bytes(wav[40:44], "little") == 2 * rate_hz == len(wav) - 44


@pytest.mark.parametrize("form", FORMATS)
def test_a_user_s_audio_is_its_samples_at_its_own_rate(form: FormatName) -> None:
    rate_hz = samples_of(form).rate_hz
    data = encoded(sweep(rate_hz), form)
    raw = UserAudio(data, form).raw
    assert raw.rate_hz == rate_hz
    assert np.array_equal(raw.samples, decoded(data, form))
