"""Kept results of text encoders: the same as computed ones, as many as fit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.denoising.controlled import Controlled
from support.tiny_pipelines import error, result
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from omnistage.stages.diffusion.control.embedding_cache import EmbeddingCache


class Encoder(nn.Module):
    """Counts its calls; a result has 4 bytes a token."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, ids: torch.Tensor, scale: float = 1.0, cache: Any = None) -> BaseModelOutput:
        self.num_calls += 1
        return BaseModelOutput(last_hidden_state=ids.float() * scale)


class Pipeline:
    def __init__(self) -> None:
        self.components = {"text_encoder": Encoder(), "vae": Encoder(), "tokenizer": object()}


class Cached:
    """An encoder with a cache of four tokens."""

    def __init__(self) -> None:
        self.variant: tuple[Any, ...] = ()
        self.cache = EmbeddingCache(16, lambda name: self.variant)
        pipeline = Pipeline()
        self.cache.install(pipeline)
        self.encoder: Any = pipeline.components["text_encoder"]
        self.vae: Any = pipeline.components["vae"]

    def __call__(self, *ids: int, **more: Any) -> Any:
        return self.encoder(ids=torch.tensor(ids), **more).last_hidden_state

    @property
    def counts(self) -> tuple[int, ...]:
        counts = self.cache.counts
        return counts["hits"], counts["misses"], counts["entries"], counts["bytes"]


@pytest.fixture
def cached() -> Iterator[Cached]:
    made = Cached()
    yield made
    made.cache.close()
    assert made.encoder(torch.tensor([1])).last_hidden_state.tolist() == [1.0]


def test_the_same_inputs_are_encoded_once(cached: Cached) -> None:
    first = cached(1, 2)
    assert torch.equal(cached(1, 2), first)
    assert cached.encoder.num_calls == 1
    assert cached.counts == (1, 1, 1, 8)


def test_other_inputs_are_others(cached: Cached) -> None:
    assert not torch.equal(cached(1, 2), cached(2, 1))
    assert not torch.equal(cached(1, 2, scale=2.0), cached(1, 2))
    cached.variant = ("ink",)
    cached(1, 2)
    assert cached.encoder.num_calls == 5  # two hits less would be wrong, one more is: evicted
    cached.vae(torch.tensor([1]))
    cached.vae(torch.tensor([1]))
    assert cached.vae.num_calls == 2


def test_what_a_pipeline_does_to_a_result_is_its_own(cached: Cached) -> None:
    cached(1, 2).zero_()
    cached(1, 2).zero_()
    assert cached(1, 2).tolist() == [1.0, 2.0]
    assert cached.encoder.num_calls == 1


def test_the_one_used_longest_ago_goes_first(cached: Cached) -> None:
    cached(1, 2)
    cached(3, 4)
    cached(1, 2)
    cached(5, 6)
    assert cached.counts == (1, 3, 2, 16)
    cached(1, 2)
    assert cached.counts == (2, 3, 2, 16)
    cached(3, 4)
    assert cached.counts == (2, 4, 2, 16)
    cached(1, 2, 3, 4, 5)
    assert cached.counts == (2, 5, 2, 16)


def test_what_cannot_be_told_apart_is_not_kept(cached: Cached) -> None:
    cached(1, cache=object())
    cached(1, cache=object())
    assert cached.encoder.num_calls == 2
    assert cached.counts == (0, 0, 0, 0)


def test_a_clear_forgets_but_counts_on(cached: Cached) -> None:
    cached(1)
    cached.cache.clear()
    assert cached.counts == (0, 1, 0, 0)
    cached(1)
    assert cached.encoder.num_calls == 2


def test_pictures_are_the_same_and_commands_count(controlled: Any) -> None:
    one: Controlled = controlled("qwen-image", embedding_cache_mb=1)
    expected = [one.expected(seed) for seed in (1, 6, 11)]  # of the same texts
    for seed, wanted in zip((1, 6, 11), expected, strict=True):
        assert error(result(one.ask({}, seed)), wanted) < 1e-5
    counts = one.obey("count_cache")["embeddings"]
    assert (counts["hits"], counts["misses"], counts["entries"]) == (4, 2, 2)
    assert 0 < counts["bytes"] <= counts["max_bytes"] == 1 << 20
    assert one.obey("clear_cache")["embeddings"]["bytes"] == 0
    assert error(result(one.ask({}, 1)), expected[0]) < 1e-5
    assert one.obey("count_cache")["embeddings"]["misses"] == 4
