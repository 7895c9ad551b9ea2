"""Calls of a denoiser at the same time, as on two groups of ranks: the same pictures."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support.denoising.begun_together import begin_together
from support.tiny_pipelines import GUIDANCE, Served, Settings, doubled, error, made, result

from omnistage.stages.diffusion.engine.foresight import Foresight
from omnistage.stages.diffusion.merging.calls import Call
from omnistage.stages.diffusion.merging.targets import Denoiser, divided
from omnistage.stages.diffusion.merging.torch_modes import TorchModes


class TwoGroups:
    """Computes in turn what two groups of ranks compute at once."""

    num_groups = 2

    def __init__(self) -> None:
        self.forward: Any = None
        self.together: list[int] = []  # calls that came at once

    def take(self, pipeline: Any) -> None:
        """The pipeline that is served."""
        self.forward = pipeline.transformer.forward

    def run(self, name: str, calls: Sequence[tuple[Any, Any]]) -> list[Any]:
        assert name == "transformer"
        assert len(calls) <= self.num_groups
        self.together.append(len(calls))
        return [self.forward(*args, **kwargs) for args, kwargs in calls]


@pytest.fixture(scope="module", params=list(GUIDANCE))
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Served, TwoGroups]]:
    torch.set_num_threads(1)
    groups = TwoGroups()
    below = Served(request.param, groups.take, beside=groups)
    yield below, groups
    below.engine.close()


def test_guidance_is_computed_beside_the_prompt(served: tuple[Served, TwoGroups]) -> None:
    below, groups = served
    settings = Settings(1, 6, 3.0)
    before = below.engine.num_foreseen
    groups.together.clear()
    assert error(result(below.ask(settings)), below.expected(settings)) < 1e-5
    foreseen = below.engine.num_foreseen - before
    if below.name == "flux":  # its guidance is a number
        assert (foreseen, groups.together) == (0, [1] * 6)
    elif below.name == "sd3":  # its guidance is a second row
        assert (foreseen, groups.together) == (0, [2] * 6)
    else:  # it calls twice, and in the first step nobody knows
        assert (foreseen, groups.together) == (5, [1, 1, *[2] * 5])


def test_requests_are_divided_among_groups(served: tuple[Served, TwoGroups]) -> None:
    below, groups = served
    settings = [Settings(seed, 3, 3.0) for seed in (0, 5, 10)]  # one prompt: one length
    expected = [below.expected(one) for one in settings]
    groups.together.clear()
    begin_together(below.engine, len(settings))
    jobs = [below.ask(one) for one in settings]
    for job, pictures in zip(jobs, expected, strict=True):
        assert error(result(job), pictures) < 1e-5
    assert groups.together.count(2) > 2


def test_a_request_of_two_pictures_is_taken_apart(served: tuple[Served, TwoGroups]) -> None:
    below, groups = served
    arguments = doubled(Settings(3, 2, 1.0).arguments(below.name))
    groups.together.clear()
    two = below.engine.submit(**arguments)
    with torch.inference_mode():
        again = doubled(Settings(3, 2, 1.0).arguments(below.name))
        expected = made(below.bare(**again))
    assert error(result(two), expected) < 1e-5
    assert groups.together == [2, 2]


def call(text: int, latents: float, target: Any = "dit", **more: Any) -> Call:
    arguments = {"text": torch.tensor(text), "latents": torch.tensor(latents), **more}
    return Call(target, arguments, TorchModes.now())


def guessed(calls: Sequence[Call]) -> Call | None:
    """What follows the last of them."""
    foresight = Foresight()
    for one in calls[:-1]:
        foresight.see(one)
    return foresight.guess(calls[-1])


def test_a_second_call_is_the_first_one_with_its_own_text() -> None:
    guess = guessed([call(1, 0.5), call(2, 0.5), call(1, 0.7)])
    assert guess is not None
    assert {name: float(one) for name, one in guess.arguments.items()} == pytest.approx(
        {"text": 2, "latents": 0.7}
    )


@pytest.mark.parametrize(
    "calls",
    [
        [call(1, 0.5)],
        [call(1, 0.5), call(2, 0.5)],
        [call(1, 0.5), call(1, 0.6), call(1, 0.7)],  # one call a step
        [call(1, 0.5), call(1, 0.5), call(1, 0.7)],
        [call(1, 0.5), call(2, 0.5), call(2, 0.7)],
        [call(1, 0.5), call(2, 0.5), call(1, 0.7, "other")],
        [call(1, 0.5), call(2, 0.5, "other"), call(1, 0.7)],
        [call(1, 0.5), call(2, 0.5), call(1, 0.7, scale=1)],
    ],
)
def test_nothing_is_guessed_without_a_pattern(calls: list[Call]) -> None:
    assert guessed(calls) is None


def test_who_was_guessed_wrongly_is_not_guessed_again() -> None:
    foresight = Foresight()
    for one in (call(1, 0.5), call(2, 0.5)):
        foresight.see(one)
    guess = foresight.guess(call(1, 0.7))
    assert guess is not None
    foresight.see(call(1, 0.7))
    assert not foresight.is_right(guess, call(2, 0.8))
    foresight.see(call(2, 0.8))
    assert foresight.guess(call(1, 0.9)) is None


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([1, 1], [[1], [1]]),
        ([1, 1, 1], [[1], [1, 1]]),
        ([3, 1], [[3], [1]]),
        ([2, 1, 1], [[2], [1, 1]]),
        ([1, 2], [[1], [2]]),
        ([4], [[4]]),
    ],
)
def test_rows_are_divided_evenly(sizes: list[int], parts: list[list[int]]) -> None:
    target = Denoiser("dit", torch.nn.Identity().forward, None)
    calls = [Call(target, {}, TorchModes.now(), size) for size in sizes]
    assert [[one.size for one in part] for part in divided(calls, 2)] == parts
