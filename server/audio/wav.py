"""The WAV header of mono s16le."""

import struct

from omnistage.server.runtime.samples import SAMPLE_BYTES

HEADER_BYTES = 44
UNKNOWN_SIZE = 0xFFFFFFFF


def wav_header(rate_hz: int, num_bytes: int | None = None) -> bytes:
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
        1,  # mono
        rate_hz,
        rate_hz * SAMPLE_BYTES,
        SAMPLE_BYTES,
        8 * SAMPLE_BYTES,
        b"data",
        data_size,
    )
