"""The bound of a request: the operator's, or what the warm-up and the deadlines make of it."""

import itertools
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from diffusers import QwenImagePipeline
from support.tiny_pipelines import Settings, doubled, quiet

from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.control.bound import MARGIN, BoundOptions
from omnistage.stages.diffusion.engine.speed import MAX_PIXELS, Speed, Stopwatch, Trials
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.components import Parts
from omnistage.stages.diffusion.request.tasks import Tasks

DEADLINES = Deadlines(first_chunk_s=100, next_chunk_s=10)


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return Tasks.find(quiet(make_tiny("qwen-image")))


def test_the_default_is_what_is_not_surely_late(tasks: Tasks) -> None:
    speed = Speed(pixels=100_000, step_s=0.5, decode_s=0.2)
    bound = BoundOptions().bound(tasks, speed, DEADLINES)
    assert bound.max_megapixels == pytest.approx(MARGIN * 10 / 0.2 * 0.1)  # the decoder's
    assert "10 s; it took 0.5 s for 0.1 in the warm-up" in bound.reason
    bound = BoundOptions().bound(tasks, replace(speed, step_s=4.0), DEADLINES)
    assert bound.max_megapixels == pytest.approx(MARGIN * 100 / 4.0 * 0.1)  # the denoiser's
    assert bound.max_megapixel_steps is None


def test_what_the_warm_up_made_is_allowed_however_short_the_deadlines_are(tasks: Tasks) -> None:
    speed = Speed(pixels=100_000, step_s=500.0, decode_s=500.0)
    assert BoundOptions().bound(tasks, speed, DEADLINES).max_megapixels == 0.1


def test_the_operators_word_wins_over_the_measure(tasks: Tasks) -> None:
    options = BoundOptions(max_megapixels=7, max_megapixel_steps=9.5)
    bound = options.bound(tasks, Speed(100, 500.0, 500.0), DEADLINES)
    assert (bound.max_megapixels, bound.max_megapixel_steps) == (7, 9.5)
    assert bound.reason == "max_megapixels"


def test_without_a_measure_there_is_no_default(tasks: Tasks) -> None:
    assert BoundOptions().bound(tasks, None, DEADLINES).max_megapixels is None


def test_a_bound_knows_what_requests_get_that_say_nothing(tasks: Tasks) -> None:
    bound = BoundOptions().bound(tasks, None, DEADLINES)
    assert (bound.width, bound.height, bound.num_frames, bound.steps) == (512, 512, 1, 50)
    assert bound.keeps_size
    wan = Tasks.find(quiet(make_tiny("wan")))
    bound = BoundOptions().bound(wan, None, DEADLINES)
    assert (bound.width, bound.height, bound.num_frames) == (832, 480, 81)
    assert (bound.fps, bound.frame_step) == (0, 4)


def test_the_documented_bounds_are_options() -> None:
    text = (Path(__file__).parents[4] / "docs" / "diffusion.md").read_text()
    (line,) = re.findall(r"^    (engine: \{max_megapixels.*\})$", text, re.MULTILINE)
    engine = yaml.safe_load(line)["engine"]
    assert engine.keys() == BoundOptions.names()
    assert BoundOptions.of(engine) == BoundOptions(max_megapixels=8, max_megapixel_steps=400)


@pytest.mark.parametrize("value", [0, -1, True, "1", float("nan"), float("inf")])
def test_a_bound_that_is_none_is_refused(value: Any) -> None:
    for name in ("max_megapixels", "max_megapixel_steps"):
        with pytest.raises(ValueError, match=f"{name}: must be a number above 0"):
            BoundOptions(**{name: value})


class Timed:
    """A tiny Qwen-Image whose clock says what a test wants; it notes the sizes that it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_call: list[float]) -> None:
        torch.set_num_threads(1)
        self.pipeline = quiet(make_tiny("qwen-image"))
        self.sizes: list[int] = []
        times = itertools.chain(seconds_per_call, itertools.repeat(seconds_per_call[-1]))
        took = iter(times)
        clock = {"now": 0.0}

        def note(module: Any, args: Any) -> None:
            self.sizes.append(args[0].shape[-1] * self.pipeline.vae_scale_factor)
            clock["now"] += next(took)

        self.pipeline.vae.decoder.conv_in.register_forward_pre_hook(note)
        monkeypatch.setattr(Stopwatch, "_now", lambda _: clock["now"])

    def speed(self, warm_up: Speed) -> Speed:
        arguments = Settings(0, 2).arguments("qwen-image")
        denoisers = Parts.find(self.pipeline).dit
        watch = Stopwatch(self.pipeline, denoisers, torch.device("cpu"))
        return Trials(self.pipeline, arguments, watch).speed(warm_up)


def test_small_pictures_are_grown_until_they_take_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch, [0.01, 0.9, 0.4])
    found = timed.speed(Speed(32 * 32, 0.01, 0.01))
    assert timed.sizes == [64, 128, 128]  # twice in the size that counts
    assert (found.pixels, found.decode_s) == (128 * 128, 0.4)


def test_slow_pictures_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch, [1.0])
    warm_up = Speed(32 * 32, 3.0, 2.0)
    assert timed.speed(warm_up) == warm_up
    assert timed.sizes == []


def test_large_pictures_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch, [1.0])
    warm_up = Speed(MAX_PIXELS, 0.2, 0.2)
    assert timed.speed(warm_up) == warm_up
    assert timed.sizes == []


def test_a_size_that_fails_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch, [0.01])

    def fail(module: Any, args: Any) -> None:
        raise RuntimeError("out of memory")

    timed.pipeline.vae.decoder.conv_out.register_forward_pre_hook(fail)
    warm_up = Speed(32 * 32, 0.01, 0.01)
    assert timed.speed(warm_up) == warm_up


def test_an_engine_measures_its_speed_and_leaves_the_pipeline_as_it_was() -> None:
    torch.set_num_threads(1)
    pipeline: QwenImagePipeline = quiet(make_tiny("qwen-image"))
    once = Settings(0).arguments("qwen-image")
    began = time.monotonic()
    engine = StepBatcher(pipeline, once, doubled(once), measures_speed=True)
    took_s = time.monotonic() - began
    engine.close()
    assert engine.learned.speed is not None
    assert engine.learned.speed.pixels >= 32 * 32
    assert 0 < engine.learned.speed.step_s < took_s
    assert 0 < engine.learned.speed.decode_s < took_s
    for part in (pipeline.transformer, pipeline.vae):
        assert not {"forward", "decode"} & vars(part).keys()
