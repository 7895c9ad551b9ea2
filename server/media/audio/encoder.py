"""From samples (s16le) to the bytes of one continuous file with the same rate and channels.

A streamed file's bytes come as early as its format allows, and joined they are one valid file.
One that is not streamed comes whole at the end, with its length in its header. Without samples it
is a file of that format all the same.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import av

from omnistage.server.media.audio.contract import AudioEncoder
from omnistage.server.media.audio.frames import audio_frame, layout_of
from omnistage.server.media.audio.resample import Resampled
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.runtime.samples import SampleFormat

BIT_RATE = 64_000  # of each channel, in the formats that lose something


@dataclass(frozen=True, slots=True)
class AudioCodec:
    """How PyAV makes a format: container, encoder, options of both.

    `shortest`: how many samples a file has at least, for readers to take it for one.
    """

    container: str
    encoder: str
    container_options: Mapping[str, str] = field(default_factory=dict)
    encoder_options: Mapping[str, str] = field(default_factory=dict)
    shortest: int = 1


CODECS = {
    # Frames that borrow no bits from the one before leave the encoder sooner.
    "mp3": AudioCodec("mp3", "libmp3lame", {"id3v2_version": "0"}, {"reservoir": "0"}),
    "opus": AudioCodec("ogg", "libopus", {"page_duration": "20000"}),
    "aac": AudioCodec("adts", "aac"),
    "flac": AudioCodec(
        "flac", "flac", {"metadata_header_padding": "0"}, {"frame_size": "1152"}, shortest=0
    ),
}
PCM = ("pcm16", "pcm")
RAW = SampleFormat(24_000)  # what OpenAI's PCM is: nothing in its bytes says it
FORMATS = ("wav", *CODECS, *PCM)


MakeEncoder = Callable[[SampleFormat], AudioEncoder]
"""From the format of the samples to what encodes them."""


def make_encoder(form: str, is_streamed: bool, samples: SampleFormat) -> AudioEncoder:
    """The encoder of one of FORMATS, which resamples and mixes only what its format cannot have."""
    file_samples = file_samples_of(form, samples)
    encoder = _encoder_of(file_samples, form, is_streamed)
    return encoder if file_samples == samples else Resampled(encoder, samples, file_samples)


def file_samples_of(form: str, samples: SampleFormat) -> SampleFormat:
    """Returns the format of a file's samples: as made, or at the next rate that its format has."""
    if form in PCM:
        return RAW
    rates, rate_hz = rates_of(form), samples.rate_hz
    if not rates or rate_hz in rates:
        return samples
    file_rate_hz = min((rate for rate in rates if rate > rate_hz), default=max(rates))
    return SampleFormat(file_rate_hz, samples.num_channels)


def rates_of(form: str) -> Sequence[int]:
    """The rates that a format has; empty if it has any."""
    if form not in CODECS:
        return ()
    return av.Codec(CODECS[form].encoder, "w").audio_rates or ()


def _encoder_of(samples: SampleFormat, form: str, is_streamed: bool) -> AudioEncoder:
    if form in CODECS:
        return CompressedEncoder(CODECS[form], samples, is_streamed)
    return RawEncoder(samples, has_header=form == "wav", is_streamed=is_streamed)


class RawEncoder:
    """The samples as they are, with a WAV header or without."""

    is_slow = False

    def __init__(self, samples: SampleFormat, has_header: bool, is_streamed: bool) -> None:
        self._samples = samples
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
        return wav_header(self._samples) + pcm if is_first and self._has_header else pcm

    def finish(self) -> bytes:
        """Returns what was kept; the header of a file without samples."""
        if self._is_streamed and self._num_bytes:
            return b""
        header = wav_header(self._samples, self._num_bytes) if self._has_header else b""
        return header + b"".join(self._kept)


class Pipe:
    """A file that only grows, and whose bytes are drained as they come."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep a copy: the memory is the muxer's."""
        self._written.append(bytes(data))
        return len(self._written[-1])

    def drain(self) -> bytes:
        """Returns what was written since."""
        written = b"".join(self._written)
        self._written.clear()
        return written


class CompressedEncoder:
    """One PyAV container with one stream; opened by the first samples."""

    is_slow = True

    def __init__(self, codec: AudioCodec, samples: SampleFormat, is_streamed: bool) -> None:
        self._codec = codec
        self._samples = samples
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
        frame = audio_frame(pcm, self._num_samples, self._samples)
        self._num_samples += frame.samples
        self._write(frame)
        return b"" if self._pipe is None else self._pipe.drain()

    def finish(self) -> bytes:
        """Return what the encoder still holds, and the end of the container."""
        head = b""
        if self._container is None:
            head = self.encode(bytes(self._codec.shortest * self._samples.num_bytes))
        container = self._container or self._open()
        self._write(None)
        container.close()
        return self._file.getvalue() if self._pipe is None else head + self._pipe.drain()

    def _open(self) -> av.container.OutputContainer:
        codec = self._codec
        options = {**codec.container_options, "flush_packets": "1"}
        if codec.container == "mp3" and self._pipe is not None:
            options["write_xing"] = "0"  # a header with the length, written at the end
        container = self._container = av.open(
            self._file if self._pipe is None else self._pipe,
            "w",
            format=codec.container,
            options=options,
        )
        self._stream = container.add_stream(
            codec.encoder,
            rate=self._samples.rate_hz,
            layout=layout_of(self._samples),
            options={**codec.encoder_options, "b": str(BIT_RATE * self._samples.num_channels)},
        )
        return container

    def _write(self, frame: av.AudioFrame | None) -> None:
        assert self._container is not None
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
