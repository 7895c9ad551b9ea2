"""Speech made faster or slower without a change of pitch, while it is made."""

from fractions import Fraction

import av

from omnistage.server.media.audio.contract import AudioEncoder
from omnistage.server.media.audio.frames import audio_frame, layout_of
from omnistage.server.runtime.samples import SampleFormat

MIN_SPEED, MAX_SPEED = 0.25, 4.0
MIN_STEP, MAX_STEP = 0.5, 2.0  # beyond, FFmpeg's atempo leaves samples out
SLICES_PER_S = 50  # it returns as much at once as it is given
TAIL_SAMPLES = 8192  # it keeps the end of what it is given to itself: silence, so that it may


class TimeStretch:
    """An encoder of `samples` that hears everything at `speed` times its pace."""

    is_slow = True

    def __init__(self, encoder: AudioEncoder, speed: float, samples: SampleFormat) -> None:
        self._encoder = encoder
        self._speed = speed
        self._samples = samples
        self._slice_bytes = samples.rate_hz // SLICES_PER_S * samples.num_bytes
        self._num_samples = 0
        self._num_bytes = 0
        self._graph = av.filter.Graph()
        source = self._graph.add_abuffer(
            sample_rate=samples.rate_hz,
            format="s16",
            layout=layout_of(samples),
            time_base=Fraction(1, samples.rate_hz),
        )
        filters = [self._graph.add("atempo", str(step)) for step in steps_of(speed)]
        self._graph.link_nodes(source, *filters, self._graph.add("abuffersink"))
        self._graph.configure()

    def encode(self, pcm: bytes) -> bytes:
        """Stretch whole samples, then encode them."""
        stretched = self._stretched(pcm)
        self._num_bytes += len(stretched)
        return self._encoder.encode(stretched)

    def finish(self) -> bytes:
        """Returns what the filter still holds, and the rest of the file."""
        num_bytes = round(self._num_samples / self._speed) * self._samples.num_bytes
        rest = self._stretched(bytes(TAIL_SAMPLES * self._samples.num_bytes))
        self._graph.push(None)
        rest += self._pull()
        return (
            self._encoder.encode(rest[: max(0, num_bytes - self._num_bytes)])
            + self._encoder.finish()
        )

    def _stretched(self, pcm: bytes) -> bytes:
        parts = []
        for start in range(0, len(pcm), self._slice_bytes):
            piece = pcm[start : start + self._slice_bytes]
            frame = audio_frame(piece, self._num_samples, self._samples)
            self._num_samples += frame.samples
            self._graph.push(frame)
            parts.append(self._pull())
        return b"".join(parts)

    def _pull(self) -> bytes:
        parts = []
        while True:
            try:
                parts.append(self._graph.pull().to_ndarray().tobytes())
            except (av.BlockingIOError, av.EOFError):
                return b"".join(parts)


def steps_of(speed: float) -> list[float]:
    """Tempos that make this one together, each within what the filter does well."""
    steps = []
    while not MIN_STEP <= speed <= MAX_STEP:
        step = MIN_STEP if speed < MIN_STEP else MAX_STEP
        steps.append(step)
        speed /= step
    return [*steps, speed]
