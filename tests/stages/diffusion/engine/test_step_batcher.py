"""Batched steps against the bare pipelines."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FluxPipeline
from support.denoising.begun_together import begin_together, gate_steps
from support.tiny_pipelines import (
    GUIDANCE,
    TIMEOUT_S,
    Served,
    Settings,
    doubled,
    error,
    made,
    quiet,
    result,
)

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.engine.switchboard import find_denoisers

# Seeds, steps, guidance and sizes; neighbours differ in each.
SETTINGS = [
    Settings(seed, 2 + seed % 3, (1.0, 3.0, 4.5)[seed % 3], 32, (64, 32, 32, 32)[seed % 4])
    for seed in range(8)
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=list(GUIDANCE))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    below = Served(request.param)
    yield below
    below.engine.close()


@pytest.fixture(scope="module")
def qwen() -> Iterator[Served]:
    """One pipeline is enough for what has nothing to do with its arguments."""
    below = Served("qwen-image")
    yield below
    below.engine.close()


def test_one_at_a_time_equals_the_bare_pipeline(served: Served) -> None:
    for settings in SETTINGS[:4]:
        assert error(result(served.ask(settings)), served.expected(settings)) < 1e-5


def test_eight_at_once_equal_the_bare_pipeline_and_share_forwards(served: Served) -> None:
    expected = [served.expected(settings) for settings in SETTINGS]
    served.engine.batch_sizes.clear()
    begin_together(served.engine, len(SETTINGS))
    jobs = [served.ask(settings) for settings in SETTINGS]
    for job, images in zip(jobs, expected, strict=True):
        assert error(result(job), images) < 1e-5
    assert max(served.engine.batch_sizes) > 1
    assert len({float(images.mean()) for images in expected}) == len(expected)


def test_with_a_batch_of_one_a_picture_is_the_same_to_the_last_bit_beside_any_others() -> None:
    below = Served("qwen-image", max_batch=1)
    alone = [result(below.ask(settings)) for settings in SETTINGS[:3]]
    begin_together(below.engine, 3)
    jobs = [below.ask(settings) for settings in SETTINGS[:3]]
    for job, images in zip(jobs, alone, strict=True):
        assert error(result(job), images) == 0
    assert set(below.engine.batch_sizes) == set(below.engine.lane_batch_sizes) == {1}
    below.engine.close()


def test_a_request_of_two_prompts_among_others(served: Served) -> None:
    settings, other = Settings(3, 2, 3.0), Settings(6, 2, 3.0)
    two = served.engine.submit(**doubled(settings.arguments(served.name)))
    one = served.ask(other)
    with torch.inference_mode():
        expected = made(served.bare(**doubled(settings.arguments(served.name))))
    assert error(result(two), expected) < 1e-5
    assert error(result(one), served.expected(other)) < 1e-5


def test_texts_of_different_lengths_share_a_forward_where_there_is_a_mask(qwen: Served) -> None:
    settings = [Settings(seed, 3) for seed in range(4)]  # prompts of four lengths
    expected = [qwen.expected(one) for one in settings]
    qwen.engine.batch_sizes.clear()
    begin_together(qwen.engine, len(settings))
    jobs = [qwen.ask(one) for one in settings]
    for job, images in zip(jobs, expected, strict=True):
        assert error(result(job), images) < 1e-5
    assert max(qwen.engine.batch_sizes) > 1


def test_four_requests_at_once_of_equal_texts_are_encoded_stepped_and_decoded_together() -> None:
    """None gets a call ahead: one's prompt in a forward with another's negative prompt, which is
    shorter, would be padded in all of their steps.
    """
    below = Served("qwen-image")
    has_mask: list[bool] = []
    below.pipeline.transformer.transformer_blocks[0].register_forward_pre_hook(
        lambda block, args, kwargs: has_mask.append(
            kwargs["encoder_hidden_states_mask"] is not None
        ),
        with_kwargs=True,
    )
    settings = [Settings(seed, 4, 3.0) for seed in range(4)]
    texts = {"prompt": "a red house by the sea", "negative_prompt": "rain"}
    for _ in range(2):  # the first calls that could be one are also made one by one
        below.engine.batch_sizes.clear()
        before = below.engine.lane_batch_sizes
        has_mask.clear()
        begin_together(below.engine, len(settings))
        jobs = [below.ask(one, **texts) for one in settings]
        for job, one in zip(jobs, settings, strict=True):
            assert error(result(job), below.expected(one, **texts)) < 1e-5
        assert below.engine.batch_sizes == {4: 2 * 4}
        assert not any(has_mask)
        assert len(has_mask) == 2 * 4
        # two texts and the decoding; what makes pictures of the tensors takes one at a time
        assert below.engine.lane_batch_sizes - before == {4: 3, 1: 4}
    below.engine.close()


def test_a_short_request_overtakes_a_long_one(qwen: Served) -> None:
    begin_together(qwen.engine, 2)
    long, short = qwen.ask(Settings(0, 50)), qwen.ask(Settings(1, 4))
    result(short)
    assert not long.result.done()
    result(long)


def test_no_size_starves_another() -> None:
    below = Served("qwen-image", max_batch=2)
    rows: list[int] = []
    below.pipeline.transformer.norm_out.register_forward_hook(
        lambda module, args, output: rows.append(output.shape[1])
    )
    begin_together(below.engine, 7)
    small = [below.ask(Settings(seed, 12)) for seed in range(6)]
    large = below.ask(Settings(7, 5, width=64))
    for job in (*small, large):
        result(job)
    below.engine.close()
    turns = [turn for turn, count in enumerate(rows) if count == max(rows)]
    assert len(turns) == 5
    gaps = [later - turn for turn, later in pairwise(turns)]
    assert max(gaps) <= 1 + len(small)


def test_a_cancelled_request_stops_within_a_step(qwen: Served) -> None:
    steps: list[int] = []
    begun, cancelled = threading.Event(), threading.Event()

    def note(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
        steps.append(step)
        begun.set()
        assert cancelled.wait(TIMEOUT_S)
        return tensors

    job = qwen.ask(Settings(0, 5), callback_on_step_end=note)
    assert begun.wait(TIMEOUT_S)
    qwen.engine.cancel(job)
    cancelled.set()
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    assert steps == [0]
    assert error(result(qwen.ask(Settings(1))), qwen.expected(Settings(1))) < 1e-5


def test_a_failing_request_fails_alone(qwen: Served) -> None:
    def fail(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
        raise RuntimeError("a callback's own")

    jobs = [
        qwen.ask(Settings(0, 3)),
        qwen.ask(Settings(1, 3), callback_on_step_end=fail),
        qwen.ask(Settings(2, 3), height="tall"),
    ]
    with pytest.raises(RuntimeError, match="a callback's own"):
        jobs[1].result.result(TIMEOUT_S)
    with pytest.raises(TypeError):
        jobs[2].result.result(TIMEOUT_S)
    assert error(result(jobs[0]), qwen.expected(Settings(0, 3))) < 1e-5


def test_step_caches_keep_their_state_for_each_request() -> None:
    below = Served("flux")
    plain = below.expected(Settings(0, 6))
    for pipeline in (below.bare, below.pipeline):
        pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    settings = [Settings(0, 6), Settings(1, 4), Settings(2, 6, width=64)]
    expected = [below.expected(one) for one in settings]
    assert error(expected[0], plain) > 1e-4  # the cache leaves something out
    jobs = [below.ask(one) for one in settings]
    for job, images in zip(jobs, expected, strict=True):
        assert error(result(job), images) < 1e-5
    below.engine.close()


class Mixed(FluxPipeline):  # type: ignore[misc] # Diffusers has no types
    """Some of its requests compute in bfloat16."""

    def __call__(self, *args: Any, is_low: bool = False, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            return super().__call__(*args, **kwargs)


def test_autocast_is_each_request_s_own() -> None:
    settings = Settings(1, 3)
    bare, pipeline = quiet(make_tiny("flux")), quiet(make_tiny("flux"))
    bare, pipeline = (quiet(Mixed(**one.components)) for one in (bare, pipeline))
    once = settings.arguments("flux")
    engine = StepBatcher(pipeline, once, doubled(once))
    expected = []
    for is_low in (True, False):
        with torch.inference_mode():
            expected.append(made(bare(**settings.arguments("flux"), is_low=is_low)))
    assert error(*expected) > 1e-4
    jobs = [engine.submit(**settings.arguments("flux"), is_low=low) for low in (True, False)]
    for job, images in zip(jobs, expected, strict=True):
        assert error(result(job), images) < 1e-5
    engine.close()


def test_a_closed_engine_leaves_the_pipeline_as_it_was() -> None:
    below = Served("flux")
    gate_steps(below.engine, lambda waiting: False)
    jobs = [below.ask(Settings(seed)) for seed in range(2)]
    below.engine.close()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.result.result(0)
    for part in (below.pipeline.transformer, below.pipeline.vae, below.pipeline.text_encoder):
        assert not {"forward", "encode", "decode"} & vars(part).keys()
    assert (
        error(made(below.pipeline(**Settings(0).arguments("flux"))), below.expected(Settings(0)))
        < 1e-5
    )
    with pytest.raises(RuntimeError, match="closed"):
        below.ask(Settings(0))


def test_a_pipeline_without_a_denoiser_is_refused() -> None:
    with pytest.raises(ValueError, match="has no denoiser"):
        find_denoisers(object())
