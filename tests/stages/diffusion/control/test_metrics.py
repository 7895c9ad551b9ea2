"""What a diffusion stage counts and times."""

import time
from collections import Counter
from typing import Any

import torch
from support.repository.metrics_docs import documented, exposed, families_in, rendered

from omnistage.stages.diffusion.control.embedding_cache import EmbeddingCache
from omnistage.stages.diffusion.control.metrics import DiffusionMetrics


class FakeEngine:
    """As far as it is counted."""

    def __init__(self) -> None:
        self.batch_sizes = Counter({1: 3, 4: 2, 40: 1})
        self.lane_batch_sizes = Counter({2: 5})


class FakePipeline:
    """A text encoder."""

    def __init__(self) -> None:
        self.components = {"text_encoder": torch.nn.Linear(2, 2)}


def metrics_of(engine: Any, cache: EmbeddingCache | None = None) -> DiffusionMetrics:
    return DiffusionMetrics(engine, cache)


def values(metrics: DiffusionMetrics) -> dict[str, float]:
    """Without buckets."""
    samples = [one for family in families_in(rendered(metrics)) for one in family.samples]
    return {one.name: one.value for one in samples if "le" not in one.labels}


def buckets(metrics: DiffusionMetrics, name: str) -> dict[str, float]:
    (family,) = (one for one in families_in(rendered(metrics)) if one.name == name)
    return {one.labels["le"]: one.value for one in family.samples if "le" in one.labels}


def test_batches_are_a_histogram_of_what_the_engine_counts() -> None:
    metrics = metrics_of(FakeEngine())
    found = values(metrics)
    assert found["omnistage_denoising_batch_requests_count"] == 6
    assert found["omnistage_denoising_batch_requests_sum"] == 3 + 8 + 40
    shared = buckets(metrics, "omnistage_denoising_batch_requests")
    assert (shared["1.0"], shared["3.0"], shared["4.0"]) == (3, 3, 5)
    assert (shared["32.0"], shared["+Inf"]) == (5, 6)
    assert found["omnistage_side_lane_batch_requests_sum"] == 10


def test_a_request_has_its_steps_and_its_time_for_each_image() -> None:
    metrics = metrics_of(FakeEngine())
    began = time.monotonic()
    request = metrics.begin()
    time.sleep(0.02)
    for _ in range(4):
        request.step()
    request.finish(num_images=2)
    took_s = time.monotonic() - began
    found = values(metrics)
    assert (found["omnistage_image_steps_count"], found["omnistage_image_steps_sum"]) == (1, 4)
    assert found["omnistage_first_step_seconds_count"] == 1
    assert found["omnistage_first_step_seconds_sum"] >= 0.02
    assert found["omnistage_image_seconds_count"] == 1
    whole_s = 2 * found["omnistage_image_seconds_sum"]
    assert found["omnistage_first_step_seconds_sum"] <= whole_s <= took_s


def test_a_request_that_does_not_finish_or_tells_no_steps_has_none() -> None:
    metrics = metrics_of(FakeEngine())
    metrics.begin().step()
    metrics.begin().finish(num_images=1)
    found = values(metrics)
    assert found["omnistage_first_step_seconds_count"] == 1
    assert found["omnistage_image_seconds_count"] == 1
    assert found["omnistage_image_steps_count"] == 0


def test_hits_of_the_embedding_cache_are_counted_where_there_is_one() -> None:
    pipeline = FakePipeline()
    cache = EmbeddingCache(1 << 20, lambda _: ())
    cache.install(pipeline)
    metrics = metrics_of(FakeEngine(), cache)
    with torch.inference_mode():
        for _ in range(3):
            pipeline.components["text_encoder"](torch.ones(1, 2))
    found = values(metrics)
    assert found["omnistage_embedding_cache_hits_total"] == 2
    assert found["omnistage_embedding_cache_misses_total"] == 1
    assert found["omnistage_embedding_cache_bytes"] == 8
    cache.close()
    assert not any("embedding" in name for name in values(metrics_of(FakeEngine())))


def test_the_documentation_lists_them() -> None:
    cache = EmbeddingCache(1 << 20, lambda _: ())
    assert exposed(rendered(metrics_of(FakeEngine(), cache))) == documented("Diffusion")
