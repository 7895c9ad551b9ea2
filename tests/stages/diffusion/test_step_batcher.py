"""Batched steps against the bare pipelines."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch
from support.tiny_pipelines import PIPELINES, TinyPipeline

from omnistage.stages.diffusion.step_batcher import StepBatcher
from omnistage.stages.diffusion.switchboard import find_denoisers

TIMEOUT_S = 60
SETTINGS = [(seed, 2 + seed % 4, (1.0, 3.0, 4.5)[seed % 3]) for seed in range(8)]


class Served:
    """A pipeline below an engine, and a bare twin to compare with."""

    def __init__(self, tiny: TinyPipeline) -> None:
        self.tiny = tiny
        self.bare = quiet(tiny.make())
        self.pipeline = quiet(tiny.make())
        once = tiny.request(0, 1, 3.0)
        self.engine = StepBatcher(self.pipeline, once, doubled(once))

    def expected(self, seed: int, num_steps: int, guidance: float) -> torch.Tensor:
        with torch.inference_mode():
            images: torch.Tensor = self.bare(**self.tiny.request(seed, num_steps, guidance)).images
        return images

    def ask(self, seed: int, num_steps: int, guidance: float, **more: Any) -> Any:
        return self.engine.submit(**self.tiny.request(seed, num_steps, guidance), **more)


def doubled(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same for two prompts."""
    return {
        name: torch.cat([value, value]) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def quiet(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module", params=list(PIPELINES))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    torch.set_num_threads(1)
    made = Served(PIPELINES[request.param])
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def qwen() -> Iterator[Served]:
    """One pipeline is enough for what has nothing to do with its arguments."""
    made = Served(PIPELINES["qwen-image"])
    yield made
    made.engine.close()


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    assert actual.shape == expected.shape
    return float((actual - expected).abs().max())


def test_one_at_a_time_equals_the_bare_pipeline(served: Served) -> None:
    for settings in SETTINGS[:3]:
        images = served.ask(*settings).result.result(TIMEOUT_S).images
        assert error(images, served.expected(*settings)) < 1e-5


def test_eight_at_once_equal_the_bare_pipeline_and_share_forwards(served: Served) -> None:
    expected = [served.expected(*settings) for settings in SETTINGS]
    served.engine.batch_sizes.clear()
    jobs = [served.ask(*settings) for settings in SETTINGS]
    for job, images in zip(jobs, expected, strict=True):
        assert error(job.result.result(TIMEOUT_S).images, images) < 1e-5
    assert max(served.engine.batch_sizes) > 1
    assert len({float(images.mean()) for images in expected}) == len(expected)


def test_a_request_of_two_prompts_among_others(served: Served) -> None:
    with torch.inference_mode():
        expected = served.bare(**doubled(served.tiny.request(3, 2, 3.0))).images
    two = served.engine.submit(**doubled(served.tiny.request(3, 2, 3.0)))
    one = served.ask(6, 2, 3.0)
    assert error(two.result.result(TIMEOUT_S).images, expected) < 1e-5
    assert error(one.result.result(TIMEOUT_S).images, served.expected(6, 2, 3.0)) < 1e-5


def test_a_short_request_overtakes_a_long_one(qwen: Served) -> None:
    long = qwen.ask(0, 50, 1.0)
    short = qwen.ask(1, 4, 1.0)
    short.result.result(TIMEOUT_S)
    assert not long.result.done()
    long.result.result(TIMEOUT_S)


def test_a_cancelled_request_stops_within_a_step(qwen: Served) -> None:
    steps: list[int] = []
    begun = threading.Event()

    def note(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
        steps.append(step)
        begun.set()
        return tensors

    job = qwen.ask(0, 500, 1.0, callback_on_step_end=note)
    assert begun.wait(TIMEOUT_S)
    qwen.engine.cancel(job)
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    assert len(steps) < 400
    other = qwen.ask(1, 2, 1.0).result.result(TIMEOUT_S).images
    assert error(other, qwen.expected(1, 2, 1.0)) < 1e-5


def test_a_failing_request_fails_alone(qwen: Served) -> None:
    def fail(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
        raise RuntimeError("a callback's own")

    jobs = [qwen.ask(0, 3, 1.0), qwen.ask(1, 3, 1.0, callback_on_step_end=fail)]
    with pytest.raises(RuntimeError, match="a callback's own"):
        jobs[1].result.result(TIMEOUT_S)
    assert error(jobs[0].result.result(TIMEOUT_S).images, qwen.expected(0, 3, 1.0)) < 1e-5
    broken = qwen.engine.submit(**{**qwen.tiny.request(2, 3, 1.0), "height": "tall"})
    with pytest.raises(TypeError):
        broken.result.result(TIMEOUT_S)


def test_a_pipeline_without_a_denoiser_is_refused() -> None:
    with pytest.raises(ValueError, match="has no denoiser"):
        find_denoisers(object())
