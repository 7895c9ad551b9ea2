"""Audio that is there as a whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av

from omnistage.server.media.audio.encoder import make_encoder
from omnistage.server.media.audio.frames import audio_frame
from omnistage.server.runtime.request import AudioOutput
from omnistage.server.runtime.samples import SampleFormat

BLOCK = 1 << 16  # samples of a channel that are encoded at once


@dataclass(frozen=True, slots=True)
class Track:
    """Audio that was made whole, alone or beside a video: s16le, in the format `samples`."""

    samples: SampleFormat
    pcm: bytes

    @classmethod
    def of(cls, outputs: Sequence[AudioOutput]) -> "Track | None":
        """Join what came of one answer's audio; None of none."""
        if not outputs:
            return None
        return cls(outputs[0].samples, b"".join(one.data for one in outputs))

    def lasting(self, seconds: Fraction) -> "Track":
        """Return it cut, or followed by silence, so that it lasts as long."""
        size = round(seconds * self.samples.rate_hz) * self.samples.num_bytes
        return Track(self.samples, self.pcm[:size].ljust(size, b"\0"))

    def frames(self) -> Iterator[av.AudioFrame]:
        """Yield the samples as PyAV wants them."""
        size = BLOCK * self.samples.num_bytes
        for number, start in enumerate(range(0, len(self.pcm), size)):
            yield audio_frame(self.pcm[start : start + size], number * BLOCK, self.samples)

    def encoded(self, form: str) -> bytes:
        """Return it as a file of one of FORMATS; may take a while."""
        encoder = make_encoder(form, is_streamed=False, samples=self.samples)
        parts = [encoder.encode(self.pcm), encoder.finish()]
        return b"".join(parts)
