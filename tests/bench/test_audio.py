"""The length of base64 sound, with and without headers."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench.fake_openai import wav

from omnistage.bench.audio import AudioError, AudioMeter, decoded_bytes
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.runtime.samples import SampleFormat


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@given(st.binary(max_size=300))
def test_the_size_is_told_without_decoding(data: bytes) -> None:
    assert decoded_bytes(encoded(data)) == len(data)


def test_raw_samples_are_24_khz_s16le() -> None:
    meter = AudioMeter()
    assert meter.duration_s(encoded(bytes(48_000))) == 1.0
    assert meter.duration_s(encoded(bytes(9_600))) == 0.2
    assert meter.duration_s("") == 0.0


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100])
def test_each_wav_file_has_its_own_header(rate_hz: int) -> None:
    meter = AudioMeter()
    for _ in range(2):
        assert meter.duration_s(encoded(wav(0.5, rate_hz))) == 0.5


def test_a_header_of_a_stream_comes_once_and_is_no_sound() -> None:
    meter = AudioMeter()
    assert meter.duration_s(encoded(wav_header(SampleFormat(24_000)))) == 0.0
    assert meter.duration_s(encoded(bytes(4_800))) == 0.1


def test_a_header_before_the_first_samples_is_not_counted() -> None:
    assert AudioMeter().duration_s(encoded(wav_header(SampleFormat(24_000)) + bytes(4_800))) == 0.1


def test_the_rate_of_a_header_holds_for_the_raw_samples_after_it() -> None:
    meter = AudioMeter()
    meter.duration_s(encoded(wav(0.0, 16_000)))
    assert meter.duration_s(encoded(bytes(32_000))) == 1.0


def test_other_chunks_of_a_wav_file_are_passed_over() -> None:
    plain = wav(0.5)
    note = struct.pack("<4sI", b"LIST", 5) + b"hello\0"  # odd sizes are padded
    assert AudioMeter().duration_s(encoded(plain[:36] + note + plain[36:])) == 0.5


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"RIFF\0\0\0\0WAVE" + struct.pack("<4sIHHIIHH", b"fmt ", 16, 85, 1, 1, 1, 1, 16), "85"),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0", "ends in its format"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "no format"),
        (b"RIFF\0\0\0\0WAVE", "no format"),
    ],
)
def test_a_header_that_tells_no_length_is_an_error(data: bytes, complaint: str) -> None:
    with pytest.raises(AudioError, match=complaint):
        AudioMeter().duration_s(encoded(data))


def test_text_where_sound_should_be_is_an_error() -> None:
    with pytest.raises(AudioError, match="no base64"):
        AudioMeter().duration_s("hello")
