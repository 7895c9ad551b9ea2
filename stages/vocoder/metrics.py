"""Counts and times of a decoder of many streams, for GET /metrics."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from omnistage.stages.messages.families import SECONDS

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class DecoderMetrics:
    """The metrics of a decoder's batches; `registry` is what is collected."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._batches = Histogram(
            "omnistage_decoder_batch_requests",
            "Requests that shared a decode.",
            registry=self.registry,
            buckets=BATCHES,
        )
        self._decode_s = Histogram(
            "omnistage_decode_seconds",
            "Time of a decode of one batch.",
            registry=self.registry,
            buckets=SECONDS,
        )
        self._wait_s = Histogram(
            "omnistage_decode_wait_seconds",
            "From a chunk's arrival to the start of its decode.",
            registry=self.registry,
            buckets=SECONDS,
        )
        self._frames = Counter(
            "omnistage_decoded_frames", "Codec frames that were decoded.", registry=self.registry
        )

    def begun(self, wait_s: float) -> None:
        """The decode of a chunk begins."""
        self._wait_s.observe(wait_s)

    def decoded(self, num_requests: int, num_frames: int, seconds: float) -> None:
        """A batch is done; `num_frames` of all requests together."""
        self._batches.observe(num_requests)
        self._decode_s.observe(seconds)
        self._frames.inc(num_frames)
