"""Counts and times of a diffusion stage, for GET /metrics."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from omnistage.stages.diffusion.control.embedding_cache import EmbeddingCache
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.messages.families import SECONDS

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
STEPS = (1, 2, 4, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)


class RequestTimes:
    """One request's, from its call of the pipeline; its steps are told by the engine's thread."""

    def __init__(self, metrics: "DiffusionMetrics") -> None:
        self._metrics = metrics
        self._began_at = time.monotonic()
        self._num_steps = 0

    def step(self) -> None:
        """A denoising step was taken."""
        if not self._num_steps:
            self._metrics.first_step_s.observe(time.monotonic() - self._began_at)
        self._num_steps += 1

    def finish(self, num_images: int) -> None:
        """Counts a request whose images are done."""
        self._metrics.image_s.observe((time.monotonic() - self._began_at) / num_images)
        if self._num_steps:
            self._metrics.steps.observe(self._num_steps)


class DiffusionMetrics(Collector):
    """Times of requests, and what the engine and the embedding cache count themselves."""

    def __init__(self, engine: StepBatcher, embeddings: EmbeddingCache | None) -> None:
        self._engine = engine
        self._embeddings = embeddings
        self._registry = CollectorRegistry()
        self.first_step_s = self._histogram(
            "first_step_seconds", "From the call of the pipeline to its first step.", SECONDS
        )
        self.image_s = self._histogram(
            "image_seconds", "Time of a finished call of the pipeline for each image.", SECONDS
        )
        self.steps = self._histogram("image_steps", "Denoising steps of a finished call.", STEPS)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        full = f"omnistage_{name}"
        return Histogram(full, about, registry=self._registry, buckets=buckets)

    def begin(self) -> RequestTimes:
        """A request calls the pipeline now."""
        return RequestTimes(self)

    def collect(self) -> Iterator[Metric]:
        """Yields the present values."""
        yield from self._registry.collect()
        yield _batches(
            "omnistage_denoising_batch_requests",
            "Requests that shared a forward of the denoiser.",
            self._engine.batch_sizes,
        )
        yield _batches(
            "omnistage_side_lane_batch_requests",
            "Requests that shared a call of an encoder or a decoder in a side lane.",
            self._engine.lane_batch_sizes,
        )
        if self._embeddings is not None:
            yield from _of_cache(self._embeddings.counts)


def _batches(name: str, about: str, sizes: Counter[int]) -> Metric:
    """A histogram of what was counted by its size."""
    counted = dict(sizes)  # another thread goes on counting
    bounds = [
        (str(float(bound)), sum(count for size, count in counted.items() if size <= bound))
        for bound in BATCHES
    ]
    bounds.append(("+Inf", sum(counted.values())))
    total = sum(size * count for size, count in counted.items())
    return HistogramMetricFamily(name, about, buckets=bounds, sum_value=total)


def _of_cache(counts: Mapping[str, int]) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "omnistage_embedding_cache_hits",
        "Calls of text encoders that the embedding cache answered.",
        counts["hits"],
    )
    yield CounterMetricFamily(
        "omnistage_embedding_cache_misses",
        "Calls of text encoders that the embedding cache could not answer.",
        counts["misses"],
    )
    yield GaugeMetricFamily(
        "omnistage_embedding_cache_bytes",
        "Size of the results in the embedding cache.",
        counts["bytes"],
    )
