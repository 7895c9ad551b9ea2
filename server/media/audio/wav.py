"""The WAV header of s16le."""

import struct

from omnistage.server.runtime.samples import SAMPLE_BYTES, SampleFormat

HEADER_BYTES = 44
UNKNOWN_SIZE = 0xFFFFFFFF


def wav_header(samples: SampleFormat, num_bytes: int | None = None) -> bytes:
    """The 44 bytes before the samples; without `num_bytes` for a stream of unknown length."""
    data_size = UNKNOWN_SIZE if num_bytes is None else num_bytes
    riff_size = UNKNOWN_SIZE if num_bytes is None else HEADER_BYTES - 8 + num_bytes
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        riff_size,
        b"WAVE",
        b"fmt ",
        16,
        1,  # PCM
        samples.num_channels,
        samples.rate_hz,
        samples.rate_hz * samples.num_bytes,
        samples.num_bytes,
        8 * SAMPLE_BYTES,
        b"data",
        data_size,
    )
