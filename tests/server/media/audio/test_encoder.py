"""Sound in every format: joined chunks are one file, lossless ones bit for bit."""

import io
import struct
from collections.abc import Iterator

import av
import numpy as np
import numpy.typing as npt
import pytest
from support.media.audio import (
    RATE_HZ,
    SHORTEST,
    channels_of,
    num_channels_of,
    num_samples_of,
    rate_of,
    samples_of,
)

from omnistage.server.media.audio.encoder import CODECS, FORMATS, PCM, file_samples_of, make_encoder
from omnistage.server.media.audio.time_stretch import TimeStretch, steps_of
from omnistage.server.runtime.samples import SampleFormat

Samples = npt.NDArray[np.int16]
LOSSLESS = ("wav", "pcm16", "pcm", "flac")
HERTZ = 440
MONO = SampleFormat(RATE_HZ)
PADDING = 2 * 1152  # at most: what mp3 and aac put before and after the samples


def tone(num_samples: int, rate_hz: int = RATE_HZ) -> Samples:
    noise = np.random.default_rng(0).normal(0, 100, num_samples)
    wave = 8000 * np.sin(np.arange(num_samples) * 2 * np.pi * HERTZ / rate_hz)
    return (wave + noise).astype(np.int16)


def pieces(sound: Samples, first: int = 1365) -> Iterator[bytes]:
    """As a vocoder sends them: ever longer."""
    at, size = 0, first
    while at < len(sound):
        yield sound[at : at + size].tobytes()
        at, size = at + size, 2 * size


def encoded(
    form: str, sound: Samples, is_streamed: bool, rate_hz: int = RATE_HZ, num_channels: int = 1
) -> list[bytes]:
    encoder = make_encoder(form, is_streamed, SampleFormat(rate_hz, num_channels))
    return [*(encoder.encode(piece) for piece in pieces(sound)), encoder.finish()]


def decoded(form: str, data: bytes) -> Samples:
    """Samples at 24 kHz, as PyAV reads the file."""
    if form in ("pcm", "pcm16"):
        return np.frombuffer(data, "<i2")
    return samples_of(data)


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_joined_chunks_are_one_file(form: str, is_streamed: bool) -> None:
    sound = tone(70_000)
    chunks = encoded(form, sound, is_streamed)
    if not is_streamed:
        assert not any(chunks[:-1])
    read = decoded(form, b"".join(chunks))
    if form in LOSSLESS:
        assert np.array_equal(read, sound)
        return
    assert len(sound) <= len(read) <= len(sound) + PADDING
    peak = np.abs(np.fft.rfft(read[:48_000].astype(float))).argmax() / 2
    assert peak == pytest.approx(HERTZ, abs=1)


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "opus"])
def test_a_whole_file_knows_its_length(form: str) -> None:
    sound = tone(48_000)
    (*_, data) = encoded(form, sound, is_streamed=False)
    with av.open(io.BytesIO(data)) as container:
        assert container.duration == pytest.approx(2_000_000, abs=10_000)
    assert len(decoded(form, data)) == len(sound)


@pytest.mark.parametrize(
    ("form", "samples"), [("wav", 1), ("pcm16", 1), ("opus", 480), ("flac", 1200), ("mp3", 1200)]
)
def test_first_bytes_come_after_so_many_samples(form: str, samples: int) -> None:
    encoder = make_encoder(form, is_streamed=True, samples=SampleFormat(RATE_HZ))
    step = min(samples, 240)
    sent = 0
    while not encoder.encode(tone(step).tobytes()):
        sent += step
    assert sent + step <= samples


@pytest.mark.parametrize("form", CODECS)
def test_the_first_two_frames_of_speech_make_bytes(form: str) -> None:
    assert make_encoder(form, is_streamed=True, samples=SampleFormat(RATE_HZ)).encode(
        tone(2 * 1920 - 555).tobytes()
    )


def test_each_chunk_of_samples_stands_alone() -> None:
    sound = tone(20_000)
    assert encoded("pcm16", sound, is_streamed=True) == [*pieces(sound), b""]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rate_hz", [RATE_HZ, 22_050])
def test_no_samples_are_the_shortest_file_of_a_format(
    form: str, is_streamed: bool, rate_hz: int
) -> None:
    encoder = make_encoder(form, is_streamed, SampleFormat(rate_hz))
    assert encoder.encode(b"") == b""
    check_shortest(form, encoder.finish())


def check_shortest(form: str, data: bytes) -> None:
    """Only PCM is without bytes; formats whose files have no header have one silent frame."""
    assert bool(data) == (form not in PCM)
    assert num_samples_of(form, data) <= SHORTEST[form]
    if SHORTEST[form]:
        assert not samples_of(data, 48_000).any()


# Rates


@pytest.mark.parametrize(
    ("form", "rate_hz", "file_rate_hz"),
    [
        *((form, 16_000, 16_000) for form in ("wav", *CODECS)),
        *((form, 48_000, 48_000) for form in ("wav", *CODECS)),
        ("opus", 22_050, 24_000),
        ("opus", 44_100, 48_000),
        ("mp3", 96_000, 48_000),
        ("aac", 6_000, 7_350),
        ("wav", 12_345, 12_345),
        ("pcm", 48_000, 24_000),
        ("pcm16", 16_000, 24_000),
    ],
)
def test_a_file_has_the_next_rate_that_its_format_can(
    form: str, rate_hz: int, file_rate_hz: int
) -> None:
    assert file_samples_of(form, SampleFormat(rate_hz)) == SampleFormat(file_rate_hz)


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("form", FORMATS)
def test_samples_of_any_rate_keep_their_length_and_pitch(
    form: str, rate_hz: int, is_streamed: bool
) -> None:
    sound = tone(3 * rate_hz, rate_hz)
    data = b"".join(encoded(form, sound, is_streamed, rate_hz))
    file_rate_hz = RATE_HZ if form in PCM else rate_of(data)
    assert file_rate_hz == (
        48_000 if form == "opus" else file_samples_of(form, SampleFormat(rate_hz)).rate_hz
    )
    read = np.frombuffer(data, "<i2") if form in PCM else samples_of(data, file_rate_hz)
    if form in ("wav", "flac"):
        assert np.array_equal(read, sound)
    is_padded = form in ("mp3", "aac") or (form == "opus" and is_streamed)
    assert -2 <= len(read) - 3 * file_rate_hz <= (PADDING if is_padded else 2)
    second = read[file_rate_hz : 2 * file_rate_hz].astype(float)
    assert np.abs(np.fft.rfft(second)).argmax() == pytest.approx(HERTZ, abs=1)


@pytest.mark.parametrize("form", ["opus", "pcm"])
def test_the_first_resampled_sound_does_not_wait_for_the_end(form: str) -> None:
    encoder = make_encoder(form, is_streamed=True, samples=SampleFormat(44_100))
    assert encoder.encode(tone(4 * 882, 44_100).tobytes())


# Channels


def two_tones(num_samples: int, rate_hz: int) -> Samples:
    """[n, 2]: one tone on the left, another on the right."""
    at = np.arange(num_samples)[:, None] * 2 * np.pi * np.array([HERTZ, 3 * HERTZ]) / rate_hz
    noise = np.random.default_rng(0).normal(0, 100, (num_samples, 2))
    sound: Samples = (8000 * np.sin(at) + noise).astype(np.int16)
    return sound


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("form", ["wav", *CODECS])
def test_stereo_stays_stereo_at_its_rate(form: str, rate_hz: int, is_streamed: bool) -> None:
    sound = two_tones(2 * rate_hz, rate_hz)
    data = b"".join(encoded(form, sound, is_streamed, rate_hz, num_channels=2))
    file_rate_hz = rate_of(data)
    assert file_rate_hz == (48_000 if form == "opus" else rate_hz)
    assert num_channels_of(data) == 2
    read = channels_of(data, 2, file_rate_hz)
    if form in LOSSLESS:
        assert np.array_equal(read, sound)
    is_padded = form in ("mp3", "aac") or (form == "opus" and is_streamed)
    assert -2 <= len(read) - 2 * file_rate_hz <= (PADDING if is_padded else 2)
    second = np.abs(np.fft.rfft(read[file_rate_hz // 2 : 3 * file_rate_hz // 2].T.astype(float)))
    assert second.argmax(1).tolist() == pytest.approx([HERTZ, 3 * HERTZ], abs=1)


@pytest.mark.parametrize("form", PCM)
def test_raw_samples_are_mono_whatever_was_made(form: str) -> None:
    """Nothing in their bytes would say more than one channel."""
    left = tone(RATE_HZ)
    sound = np.stack([left, np.zeros_like(left)], 1)
    read = np.frombuffer(b"".join(encoded(form, sound, True, num_channels=2)), "<i2")
    assert np.abs(read - left / 2).max() <= 1


def test_the_bytes_of_opus_say_the_next_rate_that_it_has() -> None:
    """Its decoders always give 48 kHz; its head has the rate that was encoded."""
    rates = []
    for rate_hz in (8_000, 16_000, 22_050, 24_000, 44_100, 48_000):
        data = b"".join(encoded("opus", tone(rate_hz, rate_hz), True, rate_hz))
        (rate,) = struct.unpack_from("<I", data, data.index(b"OpusHead") + 12)
        rates.append(rate)
    assert rates == [8_000, 16_000, 24_000, 24_000, 48_000, 48_000]


@pytest.mark.parametrize("speed", [0.4, 1.25, 3.0])
def test_another_speed_keeps_each_channel_s_pitch(speed: float) -> None:
    rate_hz = 22_050
    samples = SampleFormat(rate_hz, 2)
    sound = two_tones(4 * rate_hz, rate_hz)
    encoder = TimeStretch(make_encoder("flac", True, samples), speed, samples)
    chunks = [*(encoder.encode(piece) for piece in pieces(sound)), encoder.finish()]
    read = channels_of(b"".join(chunks), 2, rate_hz)
    assert len(read) == round(len(sound) / speed)
    peaks = np.abs(np.fft.rfft(read.T.astype(float))).argmax(1) * rate_hz / len(read)
    assert peaks.tolist() == pytest.approx([HERTZ, 3 * HERTZ], abs=2)


# Speed


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("speed", [0.25, 0.4, 0.75, 1.25, 2.0, 3.0, 4.0])
def test_another_speed_keeps_the_pitch(speed: float, rate_hz: int) -> None:
    sound = tone(4 * rate_hz - 1000, rate_hz)
    encoder = TimeStretch(
        make_encoder("flac", True, SampleFormat(rate_hz)), speed, SampleFormat(rate_hz)
    )
    chunks = [*(encoder.encode(piece) for piece in pieces(sound)), encoder.finish()]
    stretched = samples_of(b"".join(chunks), rate_hz)
    assert len(stretched) == round(len(sound) / speed)
    assert np.abs(stretched[-rate_hz // 25 :]).max() > 4000  # the filter ends a bit early
    peak = np.abs(np.fft.rfft(stretched.astype(float))).argmax() * rate_hz / len(stretched)
    assert peak == pytest.approx(HERTZ, abs=2)


def test_the_first_stretched_sound_does_not_wait_for_the_end() -> None:
    encoder = TimeStretch(make_encoder("pcm", True, MONO), 1.5, MONO)
    assert encoder.encode(tone(2 * 1920 - 555).tobytes())


@pytest.mark.parametrize("form", FORMATS)
def test_no_samples_at_another_speed_are_the_shortest_file(form: str) -> None:
    check_shortest(form, TimeStretch(make_encoder(form, True, MONO), 2.0, MONO).finish())


@pytest.mark.parametrize("speed", [0.25, 0.3, 1.0, 1.9, 2.5, 4.0])
def test_steps_make_the_speed_together(speed: float) -> None:
    assert np.prod(steps_of(speed)) == pytest.approx(speed)
    assert all(0.5 <= step <= 2.0 for step in steps_of(speed))
