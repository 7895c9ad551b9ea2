"""How long base64 sound plays: raw s16le or WAV, told apart by their heads, never decoded whole."""

import binascii
import struct
from dataclasses import dataclass

RAW_RATE_HZ = 24_000
RAW_SAMPLE_BYTES = 2
HEAD_CHARS = 4096  # of base64; a multiple of four
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


class AudioError(ValueError):
    """Sound whose length cannot be told."""


@dataclass(slots=True)
class AudioMeter:
    """Measures the pieces of one stream.

    Each piece may be a WAV file of its own, or a WAV header may come once before raw samples. Raw
    samples are 24 kHz mono s16le unless a header said otherwise.
    """

    bytes_per_s: int = RAW_RATE_HZ * RAW_SAMPLE_BYTES

    def duration_s(self, data: str) -> float:
        """Seconds that a piece plays; raises AudioError."""
        try:
            head = binascii.a2b_base64(data[:HEAD_CHARS])
        except binascii.Error as error:
            raise AudioError(f"audio is no base64: {error}") from None
        header_bytes = 0
        if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
            header_bytes, self.bytes_per_s = wav_layout(head)
        return (decoded_bytes(data) - header_bytes) / self.bytes_per_s


def decoded_bytes(data: str) -> int:
    """The number of bytes that a padded base64 string stands for."""
    return len(data) // 4 * 3 - data[-2:].count("=")


def wav_layout(head: bytes) -> tuple[int, int]:
    """Where the samples of a WAV file begin and how many bytes play in a second."""
    bytes_per_s, position = 0, 12
    while position + 8 <= len(head):
        name, size = struct.unpack_from("<4sI", head, position)
        position += 8
        if name == b"data":
            if not bytes_per_s:
                break
            return position, bytes_per_s
        if name == b"fmt ":
            bytes_per_s = _bytes_per_s(head, position)
        position += size + size % 2
    raise AudioError(f"a WAV header has no format and samples in its first {len(head)} bytes")


def _bytes_per_s(head: bytes, position: int) -> int:
    try:
        encoding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", head, position)
    except struct.error:
        raise AudioError("a WAV header ends in its format") from None
    if encoding not in (PCM, FLOAT, EXTENSIBLE):
        raise AudioError(f"WAV encoding {encoding} is compressed; its length cannot be told")
    return int(rate * channels * bits // 8)
