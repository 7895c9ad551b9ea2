"""WAV headers, as Python's own reader sees them."""

import io
import wave

from omnistage.server.audio.wav import HEADER_BYTES, wav_header


def test_a_header_of_known_size_is_read_back() -> None:
    samples = bytes(range(200))
    with wave.open(io.BytesIO(wav_header(len(samples)) + samples)) as sound:
        assert sound.getframerate() == 24_000
        assert sound.getnchannels() == 1
        assert sound.getsampwidth() == 2
        assert sound.readframes(100) == samples


def test_a_stream_s_header_leaves_the_size_open() -> None:
    header = wav_header()
    assert len(header) == HEADER_BYTES
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
