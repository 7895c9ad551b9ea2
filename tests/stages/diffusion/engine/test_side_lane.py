"""Encoders and decoders beside the steps: a tiny Flux whose decoder is under the test's control."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import pytest
import torch
from support.tiny_pipelines import TIMEOUT_S, Settings, doubled, error, made, quiet, result

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher

ONE_STEP = [Settings(seed, 1) for seed in range(6)]
WORDS = {"prompt_embeds": None, "pooled_prompt_embeds": None, "prompt": "a fox"}  # to be encoded


class Gated:
    """Flux below an engine; its decoder waits for `open`, then does what `change` makes of it."""

    def __init__(self) -> None:
        self.bare, self.pipeline = quiet(make_tiny("flux")), quiet(make_tiny("flux"))
        self.begun, self.open = threading.Event(), threading.Event()
        self.rows: list[int] = []
        self.change: Callable[[Any], Any] = lambda latents: latents
        self.more: dict[int, dict[str, Any]] = {}
        for pipeline in (self.bare, self.pipeline):
            self._put_gate(pipeline.vae, pipeline is self.pipeline)
        self.open.set()
        once = ONE_STEP[0].arguments("flux")
        self.engine = StepBatcher(self.pipeline, once, doubled(once))
        self.close_gate()

    def close_gate(self) -> None:
        """As it was, and nothing was counted."""
        self.open.clear()
        self.begun.clear()
        self.rows.clear()

    def _put_gate(self, vae: Any, is_gated: bool) -> None:
        decode = vae.decode

        def gated(latents: Any, return_dict: bool = True) -> Any:
            if is_gated:
                self.rows.append(len(latents))
                self.begun.set()
                assert self.open.wait(TIMEOUT_S)
            return decode(self.change(latents), return_dict=return_dict)

        vae.decode = gated

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """With what the prompt's encoders would make of it."""
        random = torch.Generator().manual_seed(settings.seed)
        texts = {
            "prompt": None,
            "prompt_embeds": torch.randn(1, 6, TEXT_SIZE, generator=random),
            "pooled_prompt_embeds": torch.randn(1, TEXT_SIZE, generator=random),
        }
        return {**settings.arguments("flux"), **texts, **self.more.get(settings.seed, {})}

    def ask(self, settings: Settings, **more: Any) -> Any:
        """A job of the engine."""
        return self.engine.submit(**{**self.arguments(settings), **more})

    def expected(self, settings: Settings, **more: Any) -> torch.Tensor:
        """The bare pipeline's."""
        with torch.inference_mode():
            return made(self.bare(**{**self.arguments(settings), **more}))

    def all_in_lane(self, settings: list[Settings]) -> list[Any]:
        """Jobs that all wait for the decoder; the first of them is in it."""
        denoised = threading.Semaphore(0)

        def note(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
            denoised.release()
            return tensors

        jobs = [self.ask(settings[0], callback_on_step_end=note)]
        assert self.begun.wait(TIMEOUT_S)
        jobs += [self.ask(one, callback_on_step_end=note) for one in settings[1:]]
        for _ in jobs:
            assert denoised.acquire(timeout=TIMEOUT_S)
        self.engine.ping().result(TIMEOUT_S)
        return jobs


@pytest.fixture
def gated() -> Iterator[Gated]:
    torch.set_num_threads(1)
    below = Gated()
    yield below
    below.open.set()
    below.engine.close()


@pytest.mark.parametrize("encodes", [False, True])
def test_a_request_is_encoded_and_steps_while_another_decodes(encodes: bool, gated: Gated) -> None:
    decoding = gated.ask(ONE_STEP[0])
    assert gated.begun.wait(TIMEOUT_S)
    settings = Settings(1, 5)
    more: dict[str, Any] = {"output_type": "latent", **(WORDS if encodes else {})}
    stepping, expected = gated.ask(settings, **more), gated.expected(settings, **more)
    assert error(result(stepping), expected) < 1e-5
    assert not decoding.result.done()
    gated.open.set()
    assert error(result(decoding), gated.expected(ONE_STEP[0])) < 1e-5


def test_requests_are_told_when_another_leaves_the_lane_before_them(gated: Gated) -> None:
    told: Counter[int] = Counter()
    jobs = gated.all_in_lane(ONE_STEP[:4])
    for number, job in enumerate(jobs):
        job.on_wait = partial(told.update, [number])
    result(gated.ask(Settings(4, 2), output_type="latent", **WORDS))
    assert not told  # what the encoders and the steps do is not before them
    gated.open.set()
    for job in jobs:
        result(job)
    assert all(told[number] for number in (1, 2, 3))


def test_requests_are_told_when_others_step_before_them(gated: Gated) -> None:
    """Two that cannot be one take turns; both have come before the first step."""
    told: Counter[int] = Counter()

    def hold() -> None:
        gated.begun.set()
        assert gated.open.wait(TIMEOUT_S)

    holding = gated.engine.between_steps(hold)
    assert gated.begun.wait(TIMEOUT_S)
    jobs = [gated.ask(Settings(0, 3, height=side), output_type="latent") for side in (32, 64)]
    for number, job in enumerate(jobs):
        job.on_wait = partial(told.update, [number])
    gated.open.set()
    holding.result(TIMEOUT_S)
    for job in jobs:
        result(job)
    assert told == {0: 2, 1: 3}  # at the last step of the second the first has ended


def test_orders_wait_for_encoders_and_decoders(gated: Gated) -> None:
    decoding = gated.ask(ONE_STEP[0])
    assert gated.begun.wait(TIMEOUT_S)
    order = gated.engine.between_steps(gated.open.is_set)
    with pytest.raises(TimeoutError):
        order.result(0.2)
    gated.open.set()
    assert order.result(TIMEOUT_S)
    result(decoding)


def test_decoders_calls_that_wait_are_merged_once_that_is_known_to_be_the_same(
    gated: Gated,
) -> None:
    for num_rows in ([1, 1, 1, 1, 3], [1, 3]):  # alone, then three both ways; then merged
        jobs = gated.all_in_lane(ONE_STEP[:4])
        gated.open.set()
        for job, settings in zip(jobs, ONE_STEP, strict=False):
            assert error(result(job), gated.expected(settings)) < 1e-5
        assert gated.rows == num_rows
        gated.close_gate()


def test_calls_that_change_each_other_are_not_merged(gated: Gated) -> None:
    gated.change = lambda latents: latents - latents.mean()
    for _ in range(2):
        jobs = gated.all_in_lane(ONE_STEP[:4])
        gated.open.set()
        for job, settings in zip(jobs, ONE_STEP, strict=False):
            assert error(result(job), gated.expected(settings)) < 1e-5
        rows = list(gated.rows)
        gated.close_gate()
    assert rows == [1, 1, 1, 1]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_failing_call_fails_alone(is_known: bool, gated: Gated) -> None:
    if is_known:  # that such calls can be merged
        jobs = gated.all_in_lane(ONE_STEP[:4])
        gated.open.set()
        for job in jobs:
            result(job)
        gated.close_gate()

    def refuse(latents: Any) -> Any:
        if (latents > 1000).any():
            raise RuntimeError("the decoder's own")
        return latents

    gated.change = refuse
    gated.more = {1: {"latents": torch.full((1, 64, 16), 1e6)}}
    jobs = gated.all_in_lane(ONE_STEP[:4])
    gated.open.set()
    with pytest.raises(RuntimeError, match="the decoder's own"):
        result(jobs[1])
    for index in (0, 2, 3):
        assert error(result(jobs[index]), gated.expected(ONE_STEP[index])) < 1e-5


def test_cancelled_in_the_decoder_and_before_it(gated: Gated) -> None:
    jobs = gated.all_in_lane(ONE_STEP[:3])
    for job in jobs[:2]:
        gated.engine.cancel(job)
        with pytest.raises(CancelledError):
            job.result.result(TIMEOUT_S)
    gated.open.set()
    assert error(result(jobs[2]), gated.expected(ONE_STEP[2])) < 1e-5
    assert gated.rows == [1, 1]
