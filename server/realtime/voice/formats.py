"""Audio formats of a session: PCM at 24 kHz, and G.711 (mu-law, A-law) at 8 kHz."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt

from omnistage.server.media.audio.contract import AudioEncoder
from omnistage.server.media.audio.encoder import make_encoder
from omnistage.server.media.audio.frames import audio_frame
from omnistage.server.media.audio.resample import Resampled
from omnistage.server.media.audio.time_stretch import TimeStretch
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.media.sound import RawAudio
from omnistage.server.runtime.samples import SAMPLE_BYTES, SampleFormat

FormatName = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
PCM: FormatName = "audio/pcm"
CODECS: Mapping[str, str] = {"audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}
PCM_SAMPLES, G711_SAMPLES = SampleFormat(24_000), SampleFormat(8_000)
STAGE_RATE_HZ, FLOAT_BYTES = 16_000, 4  # of the samples that models of speech get

Samples = npt.NDArray[np.int16]


def samples_of(form: str) -> SampleFormat:
    """Return the rate and channels of a format."""
    return PCM_SAMPLES if form == PCM else G711_SAMPLES


def sample_bytes(form: str) -> int:
    """Return how many bytes a sample has in a format."""
    return SAMPLE_BYTES if form == PCM else 1


def decoded(data: bytes, form: str) -> Samples:
    """Read whole samples of a format: int16 [n]."""
    if form == PCM:
        return np.frombuffer(data, "<i2")
    return _decoding(CODECS[form])[np.frombuffer(data, np.uint8)]


def encoded(samples: Samples, form: str) -> bytes:
    """Write int16 [n] samples in a format."""
    if form == PCM:
        return samples.astype("<i2", copy=False).tobytes()
    return _encoding(CODECS[form])[samples.view(np.uint16)].tobytes()


@dataclass(slots=True)
class UserAudio:
    """Audio of a user as it came: bytes of a format.

    Each answer of its session reads it again, so `raw` keeps what a stage got of it, unless
    `keep_read` says otherwise.
    """

    data: bytes
    form: str
    _keeps: bool = field(default=True, compare=False)
    _raw: RawAudio | None = field(default=None, compare=False, repr=False)

    @property
    def ms(self) -> float:
        """How long it plays, in milliseconds."""
        num_samples = len(self.data) / sample_bytes(self.form)
        return 1000 * num_samples / samples_of(self.form).rate_hz

    def to_wav(self) -> bytes:
        """Make a WAV file of it, at its own rate."""
        pcm = decoded(self.data, self.form).tobytes()
        return wav_header(samples_of(self.form), len(pcm)) + pcm

    @property
    def raw(self) -> RawAudio:
        """Return its samples, at its own rate."""
        raw = self._raw
        if raw is None:
            rate_hz = samples_of(self.form).rate_hz
            raw = RawAudio(decoded(self.data, self.form), rate_hz, remembers=self._keeps)
            self._raw = raw if self._keeps else None
        return raw

    @property
    def read_bytes(self) -> int:
        """Return how much memory it takes to keep what stages get of it, about."""
        decoded_bytes = 0 if self.form == PCM else SAMPLE_BYTES * len(self.data)
        return decoded_bytes + round(self.ms / 1000 * STAGE_RATE_HZ) * FLOAT_BYTES

    def keep_read(self, keeps: bool) -> None:
        """Keep what stages get of it from now on, or forget it."""
        self._keeps = keeps
        if not keeps:
            self._raw = None


def output_encoder(form: str, speed: float, samples: SampleFormat) -> AudioEncoder:
    """Make what encodes samples to a format, heard at `speed` times their pace."""
    if form == PCM:
        encoder = make_encoder("pcm", is_streamed=True, samples=samples)
    else:
        encoder = G711(form)
        if samples != G711_SAMPLES:
            encoder = Resampled(encoder, samples, G711_SAMPLES)
    return encoder if speed == 1.0 else TimeStretch(encoder, speed, samples)


class G711:
    """An encoder of samples at 8 kHz to one byte each."""

    is_slow = False

    def __init__(self, form: str) -> None:
        self._form = form

    def encode(self, pcm: bytes) -> bytes:
        """Encode whole samples."""
        return encoded(np.frombuffer(pcm, "<i2"), self._form)

    def finish(self) -> bytes:
        """Return nothing: no sample is held back."""
        return b""


class Resampler:
    """A stream of samples of one channel, brought to another rate by FFmpeg."""

    def __init__(self, source: SampleFormat, rate_hz: int) -> None:
        self._source = source
        self._num_samples = 0
        self._resampler = av.AudioResampler("s16", "mono", rate_hz)

    def add(self, samples: Samples) -> Samples:
        """Resample int16 [n]; what cannot be computed yet comes with later samples."""
        if not len(samples):
            return samples
        frame = audio_frame(samples.tobytes(), self._num_samples, self._source)
        self._num_samples += len(samples)
        parts = [part.to_ndarray()[0] for part in self._resampler.resample(frame)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)


@cache
def _decoding(codec: str) -> Samples:
    """Make the table of FFmpeg's decoder: the sample of each byte, int16 [256]."""
    decoder = _context(codec, "r")
    frames = decoder.decode(av.Packet(bytes(range(256))))
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


@cache
def _encoding(codec: str) -> npt.NDArray[np.uint8]:
    """Make the table of FFmpeg's encoder: the byte of each sample, by its bits as uint16."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    packets = _context(codec, "w").encode(audio_frame(every.tobytes(), 0, G711_SAMPLES))
    return np.frombuffer(b"".join(map(bytes, packets)), np.uint8)


def _context(codec: str, mode: Literal["r", "w"]) -> Any:
    context: Any = av.CodecContext.create(codec, mode)
    context.sample_rate, context.layout = G711_SAMPLES.rate_hz, "mono"
    if mode == "w":
        context.format = "s16"
    return context
