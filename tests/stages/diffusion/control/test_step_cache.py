"""Step caches: several requests at once equal one at a time, and a request may do without."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.hooks import FirstBlockCacheConfig, MagCacheConfig, TaylorSeerCacheConfig
from support.denoising.begun_together import begin_together
from support.denoising.controlled import Controlled
from support.tiny_pipelines import error, result

from omnistage.stages.worker.failure import RequestError

Make = Callable[..., Controlled]
STEPS = [6, 9, 7, 9]
CACHES: list[tuple[str, dict[str, Any], Any]] = [
    ("first_block", {"threshold": 0.5}, FirstBlockCacheConfig),
    ("mag", {"mag_ratios": [1.0] * 28, "threshold": 0.5}, MagCacheConfig),
    ("taylor_seer", {"cache_interval": 3, "taylor_factors_dtype": torch.float32},
     TaylorSeerCacheConfig),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "config"), CACHES)
def test_several_at_once_equal_the_bare_pipeline_with_the_cache(
    name: str, options: dict[str, Any], config: Any, controlled: Make
) -> None:
    one = controlled("qwen-image", step_cache=name, step_cache_options=options)
    plain = one.expected(1, num_steps=STEPS[1])
    one.bare.transformer.enable_cache(config(**options))
    expected = [one.expected(i, num_steps=steps) for i, steps in enumerate(STEPS)]
    assert error(expected[1], plain) > 1e-4
    begin_together(one.engine, len(STEPS) + 2)
    jobs = [one.ask({}, i, num_steps=steps) for i, steps in enumerate(STEPS)]
    without = [one.ask({"step_cache": False}, 1, num_steps=STEPS[1]) for _ in range(2)]
    for job, wanted in zip(jobs, expected, strict=True):
        assert error(result(job), wanted) < 1e-5
    for job in without:
        assert error(result(job), plain) < 1e-5
    assert set(one.engine.batch_sizes) == {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_cache": "tea"}, "'tea' is none of first_block, mag, taylor_seer"),
        (
            {"step_cache": "first_block", "step_cache_options": {"limit": 1}},
            "step_cache_options: .*limit",
        ),
        ({"step_cache_options": {"threshold": 1}}, "no effect without step_cache"),
    ],
)
def test_a_wrong_cache_is_named(options: dict[str, Any], message: str, controlled: Make) -> None:
    with pytest.raises(ValueError, match=message):
        controlled("qwen-image", **options)


def test_a_request_for_a_cache_that_is_not_there_is_refused(controlled: Make) -> None:
    one = controlled("qwen-image")
    result(one.ask({"step_cache": False}, 1))
    with pytest.raises(RequestError) as caught:
        one.ask({"step_cache": True}, 1)
    assert (caught.value.status, caught.value.param) == (400, "step_cache")
