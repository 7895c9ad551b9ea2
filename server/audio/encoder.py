"""From samples (s16le, 24 kHz, mono) to the bytes of one continuous file.

A streamed file's bytes come as early as its format allows, and joined they are one valid file.
One that is not streamed comes whole at the end, with its length in its header.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import av
import numpy as np

from omnistage.server.audio.wav import wav_header
from omnistage.server.runtime.samples import SAMPLE_RATE_HZ

BIT_RATE = 64_000  # of the formats that lose something


@dataclass(frozen=True, slots=True)
class Codec:
    """How PyAV makes a format: container, encoder, options of both."""

    container: str
    encoder: str
    container_options: Mapping[str, str] = field(default_factory=dict)
    encoder_options: Mapping[str, str] = field(default_factory=dict)


CODECS = {
    # Frames that borrow no bits from the one before leave the encoder sooner.
    "mp3": Codec("mp3", "libmp3lame", {"id3v2_version": "0"}, {"reservoir": "0"}),
    "opus": Codec("ogg", "libopus", {"page_duration": "20000"}),
    "aac": Codec("adts", "aac"),
    "flac": Codec("flac", "flac", {"metadata_header_padding": "0"}, {"frame_size": "1152"}),
}
PCM = ("pcm16", "pcm")
FORMATS = ("wav", *CODECS, *PCM)


class AudioEncoder(Protocol):
    """Makes one file; without samples it makes nothing at all."""

    is_slow: bool
    """Takes longer than an event loop should: call it in a thread."""

    def encode(self, pcm: bytes) -> bytes:
        """Take whole samples; what is ready of the file comes back."""

    def finish(self) -> bytes:
        """The rest of the file."""


def make_encoder(form: str, is_streamed: bool) -> AudioEncoder:
    """The encoder of one of FORMATS; of a form without a codec the samples stay as they are."""
    if form in CODECS:
        return CompressedEncoder(CODECS[form], is_streamed)
    return RawEncoder(has_header=form == "wav", is_streamed=is_streamed)


def audio_frame(pcm: bytes, position: int) -> av.AudioFrame:
    """Samples as PyAV wants them; `position`: how many came before them."""
    samples = np.frombuffer(pcm, "<i2")[None]
    frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
    frame.sample_rate = SAMPLE_RATE_HZ
    frame.time_base = Fraction(1, SAMPLE_RATE_HZ)
    frame.pts = position
    return frame


class RawEncoder:
    """The samples as they are, with a WAV header or without."""

    is_slow = False

    def __init__(self, has_header: bool, is_streamed: bool) -> None:
        self._has_header = has_header
        self._is_streamed = is_streamed
        self._num_bytes = 0
        self._kept: list[bytes] = []

    def encode(self, pcm: bytes) -> bytes:
        """The same samples, or nothing yet."""
        is_first = self._num_bytes == 0 and bool(pcm)
        self._num_bytes += len(pcm)
        if not self._is_streamed:
            self._kept.append(pcm)
            return b""
        return wav_header() + pcm if is_first and self._has_header else pcm

    def finish(self) -> bytes:
        """What was kept."""
        if self._is_streamed or not self._num_bytes:
            return b""
        header = wav_header(self._num_bytes) if self._has_header else b""
        return header + b"".join(self._kept)


class Pipe:
    """A file that only grows, and whose bytes are taken away."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep a copy: the memory is the muxer's."""
        self._written.append(bytes(data))
        return len(self._written[-1])

    def take(self) -> bytes:
        """What was written since."""
        taken = b"".join(self._written)
        self._written.clear()
        return taken


class CompressedEncoder:
    """One PyAV container with one stream; opened by the first samples."""

    is_slow = True

    def __init__(self, codec: Codec, is_streamed: bool) -> None:
        self._codec = codec
        self._pipe = Pipe() if is_streamed else None
        self._file = io.BytesIO()
        self._container: av.container.OutputContainer | None = None
        self._num_samples = 0

    def encode(self, pcm: bytes) -> bytes:
        """The packets that these samples complete."""
        if not pcm:
            return b""
        if self._container is None:
            self._open()
        frame = audio_frame(pcm, self._num_samples)
        self._num_samples += frame.samples
        self._write(frame)
        return b"" if self._pipe is None else self._pipe.take()

    def finish(self) -> bytes:
        """What the encoder still holds, and the end of the container."""
        if self._container is None:
            return b""
        self._write(None)
        self._container.close()
        return self._file.getvalue() if self._pipe is None else self._pipe.take()

    def _open(self) -> None:
        codec = self._codec
        options = {**codec.container_options, "flush_packets": "1"}
        if codec.container == "mp3" and self._pipe is not None:
            options["write_xing"] = "0"  # a header with the length, written at the end
        self._container = av.open(
            self._file if self._pipe is None else self._pipe,
            "w",
            format=codec.container,
            options=options,
        )
        self._stream = self._container.add_stream(
            codec.encoder,
            rate=SAMPLE_RATE_HZ,
            layout="mono",
            options={**codec.encoder_options, "b": str(BIT_RATE)},
        )

    def _write(self, frame: av.AudioFrame | None) -> None:
        assert self._container is not None
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
