"""Audio brought to the rate and the channels of its file, while it is made."""

import av

from omnistage.server.media.audio.contract import AudioEncoder
from omnistage.server.media.audio.frames import audio_frame, layout_of
from omnistage.server.runtime.samples import SampleFormat


class Resampled:
    """An encoder of `samples` whose file has those of `file_samples`."""

    is_slow = True

    def __init__(
        self, encoder: AudioEncoder, samples: SampleFormat, file_samples: SampleFormat
    ) -> None:
        self._encoder = encoder
        self._samples = samples
        self._num_samples = 0
        self._resampler = av.AudioResampler("s16", layout_of(file_samples), file_samples.rate_hz)

    def encode(self, pcm: bytes) -> bytes:
        """Resample whole samples, then encode them."""
        if not pcm:
            return b""
        frame = audio_frame(pcm, self._num_samples, self._samples)
        self._num_samples += frame.samples
        return self._encoder.encode(self._resampled(frame))

    def finish(self) -> bytes:
        """Returns what the resampler still holds, and the rest of the file."""
        rest = self._encoder.encode(self._resampled(None)) if self._num_samples else b""
        return rest + self._encoder.finish()

    def _resampled(self, frame: av.AudioFrame | None) -> bytes:
        return b"".join(part.to_ndarray().tobytes() for part in self._resampler.resample(frame))
