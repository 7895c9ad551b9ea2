"""WAV headers, as Python's own reader sees them."""

import io
import wave

import pytest

from omnistage.server.media.audio.wav import HEADER_BYTES, wav_header
from omnistage.server.runtime.samples import SampleFormat


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("num_channels", [1, 2])
def test_a_header_of_known_size_is_read_back(num_channels: int, rate_hz: int) -> None:
    samples = bytes(range(200))
    with wave.open(
        io.BytesIO(wav_header(SampleFormat(rate_hz, num_channels), len(samples)) + samples)
    ) as sound:
        assert sound.getframerate() == rate_hz
        assert sound.getnchannels() == num_channels
        assert sound.getsampwidth() == 2
        assert sound.readframes(100) == samples


def test_a_stream_s_header_leaves_the_size_open() -> None:
    header = wav_header(SampleFormat(24_000))
    assert len(header) == HEADER_BYTES
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
