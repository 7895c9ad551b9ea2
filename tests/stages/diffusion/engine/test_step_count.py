"""Steps of pipelines that report none, counted for a request's progress and its deadlines."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
    WanTransformer3DModel,
)
from support.gateway.serving import outputs_of
from support.models.silent_pipelines import SLOW_S, SilentPipeline, SilentWan, ToyPipeline
from support.models.tiny_if import make_tiny_if
from support.stages.in_process import served
from support.stages.stage_outputs import Outputs, stage_over
from support.tiny_pipelines import TIMEOUT_S, doubled, quiet

from omnistage.server.runtime.request import GraphRequest, ImageOutput
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.engine.step_count import MAX_CALLS_A_STEP
from omnistage.stages.diffusion.merging.setting import DEFAULT
from omnistage.stages.diffusion.request.tasks import arguments_of
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_gateway import Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened

Counted = list[tuple[int, int]]
COUNT = "num_images_per_prompt"
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
SMALL = {"height": 32, "width": 32}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def counted(pipeline: Any, *wanted: dict[str, Any], once: dict[str, Any]) -> list[Counted]:
    """The steps that were reported of requests that run at once, and how many of how many."""
    known = arguments_of(pipeline)
    twice = {**once, "num_images_per_prompt": 2} if COUNT in known else doubled(once)
    engine = StepBatcher(pipeline, once, twice)
    reports: list[Counted] = [[] for _ in wanted]
    jobs = []
    for arguments, seen in zip(wanted, reports, strict=True):
        on_step = partial(lambda seen, step, total: seen.append((step, total)), seen)
        jobs.append(engine.submit(None, DEFAULT, on_step, **arguments))
    for job in jobs:
        job.result.result(TIMEOUT_S)
    engine.close()
    return reports


def all_of(total: int) -> Counted:
    return [(step, total) for step in range(1, total + 1)]


def toy(schedulers: Sequence[Any], *ways: str, **arguments: Any) -> Counted:
    once = {"num_inference_steps": 2, "generator": torch.Generator().manual_seed(0)}
    [seen] = counted(ToyPipeline(schedulers, *ways), {**once, **arguments}, once=once)
    return seen


@pytest.mark.parametrize(
    ("scheduler", "total"),
    [
        (DDIMScheduler(), 5),
        (DDPMScheduler(), 5),
        (FlowMatchEulerDiscreteScheduler(), 5),
        (LCMScheduler(), 5),
        (UniPCMultistepScheduler(**FLOW), 5),
        (FlowMatchHeunDiscreteScheduler(), 9),  # two evaluations for each step but the last
        (PNDMScheduler(skip_prk_steps=True), 6),
    ],
    ids=lambda one: type(one).__name__,
)
def test_each_kind_of_scheduler_counts_its_own_steps(scheduler: Any, total: int) -> None:
    assert toy([scheduler], num_inference_steps=5) == all_of(total)


@pytest.mark.parametrize("scheduler", [DDIMScheduler(), UniPCMultistepScheduler(**FLOW)])
def test_an_edit_that_begins_in_the_middle_has_the_steps_from_there(scheduler: Any) -> None:
    assert toy([scheduler], num_inference_steps=8, skipped=5) == all_of(3)


def test_a_scheduler_that_the_pipeline_copies_is_not_counted_twice() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    assert toy([scheduler], "copied", num_inference_steps=4) == all_of(4)


def test_a_second_loop_goes_on_counting() -> None:
    seen = toy([DDIMScheduler(), UniPCMultistepScheduler(**FLOW)], num_inference_steps=3)
    assert seen == [*all_of(3), (4, 6), (5, 6), (6, 6)]


def test_pictures_that_are_made_one_after_another_go_on_counting() -> None:
    seen = toy([DDIMScheduler()], "apart", num_inference_steps=2, num_images_per_prompt=3)
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [total for _, total in seen] == [2, 2, 4, 4, 6, 6]


def test_without_a_scheduler_each_call_of_the_denoiser_is_reported() -> None:
    seen = toy([], "own", num_inference_steps=2)
    assert seen == [(call, 0) for call in range(MAX_CALLS_A_STEP + 1, 21)]


def test_requests_at_once_are_counted_apart_and_do_not_share_any_scheduler() -> None:
    """Of all names: a second scheduler's schedule is a request's own, too."""
    pipeline = ToyPipeline([UniPCMultistepScheduler(**FLOW), DDIMScheduler()])

    def arguments(num: int) -> dict[str, Any]:
        return {
            "num_inference_steps": num,
            "generator": torch.Generator().manual_seed(num),
        }

    bare = [pipeline(**arguments(num)).images for num in (2, 3, 5)]
    engine = StepBatcher(pipeline, arguments(2), {**arguments(2), "num_images_per_prompt": 2})
    jobs = [engine.submit(**arguments(num)) for num in (2, 3, 5)]
    for job, images in zip(jobs, bare, strict=True):
        assert torch.allclose(job.result.result(TIMEOUT_S).images, images, atol=1e-6)
    engine.close()
    seen = counted(pipeline, *map(arguments, (2, 3, 5)), once=arguments(2))
    assert [[step for step, _ in one] for one in seen] == [
        list(range(1, 2 * num + 1)) for num in (2, 3, 5)
    ]


def silent(steps: int, seed: int, guidance: float = 3.0, **more: Any) -> dict[str, Any]:
    return {
        "prompt": "a cat",
        "negative_prompt": "rain",
        "true_cfg_scale": guidance,
        "num_inference_steps": steps,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": "pt",
        **SMALL,
        **more,
    }


def test_guidance_in_two_calls_is_one_step_and_several_pictures_are_one_loop() -> None:
    pipeline = quiet(SilentPipeline(**make_tiny("qwen-image").components))
    wanted = [silent(3, 0), silent(5, 1, 1.0), silent(4, 2, num_images_per_prompt=3)]
    assert counted(pipeline, *wanted, once=silent(2, 0)) == [all_of(3), all_of(5), all_of(4)]


def test_two_denoisers_take_the_steps_of_one_loop() -> None:
    made = make_tiny("wan")
    second = WanTransformer3DModel.from_config(made.transformer.config).eval()
    parts = {**made.components, "transformer_2": second, "boundary_ratio": 0.5}
    pipeline = quiet(SilentWan(**parts))
    called: list[str] = []
    for name in ("transformer", "transformer_2"):
        getattr(pipeline, name).register_forward_pre_hook(lambda *_, name=name: called.append(name))
    once = {"prompt": "a cat", "num_frames": 5, "num_inference_steps": 6, **SMALL}
    assert counted(pipeline, once, once=once) == [all_of(6)]
    assert set(called) == {"transformer", "transformer_2"}


def write_silent(folder: Path) -> None:
    """Write a pipeline without a callback."""
    make_tiny_if().save_pretrained(folder)


def draw(name: str, steps: int) -> Opened:
    body = {"prompt": "a cat", "num_inference_steps": steps, "height": 16, "width": 16}
    return Opened(name, Request(Draw(body), ["image"], seed=1))


def steps_of(outputs: Outputs, name: str) -> list[tuple[int, int]]:
    messages = [chunk.message for chunk in outputs.chunks[name]]
    return [(one.step, one.num_steps) for one in messages if isinstance(one, Step)]


async def test_a_stage_reports_each_step_of_a_pipeline_without_a_callback(tmp_path: Path) -> None:
    write_silent(tmp_path)
    stage, outputs = stage_over(tmp_path, height=16, width=16)
    await stage.start()
    await asyncio.gather(stage.serve(draw("a", 4)), stage.serve(draw("b", 7)))
    assert (steps_of(outputs, "a"), steps_of(outputs, "b")) == (all_of(4), all_of(7))
    await stage.close()


def test_a_cancelled_request_without_a_callback_ends_within_a_step() -> None:
    pipeline = quiet(SilentPipeline(**make_tiny("qwen-image").components))
    engine = StepBatcher(pipeline, silent(2, 0), silent(2, 0, num_images_per_prompt=2))
    seen: Counted = []

    def on_step(step: int, total: int) -> None:
        seen.append((step, total))
        if step == 3:
            engine.cancel(job)

    job = engine.submit(None, DEFAULT, on_step, **silent(40, 1))
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    engine.close()
    assert seen == [(1, 40), (2, 40), (3, 40)]


async def test_a_request_far_longer_than_its_deadlines_is_served_without_a_callback(
    tmp_path: Path,
) -> None:
    """Each step is in time; the whole takes longer than a first chunk may."""
    steps, limit_s = 40, 6.0  # 24 times a step, on a busy machine too
    write_tiny("qwen-image", tmp_path / "model")
    engine = {
        "pipeline_class": "support.models.silent_pipelines.SlowSilentPipeline",
        "warm_up": SMALL,
        "max_megapixels": 1,
    }
    graph = {
        "model": str(tmp_path / "model"),
        "stages": {"dit": {"kind": "diffusers", "engine": engine}},
        "outputs": {"image": "dit"},
        "deadlines": {"first_chunk_s": limit_s, "next_chunk_s": limit_s},
    }
    body = {"prompt": "a cat", "num_inference_steps": steps, "true_cfg_scale": 1.0, **SMALL}
    request = GraphRequest("a", Request(Draw(body), ["image"], seed=1))
    async with served(StageGraph.model_validate(graph), tmp_path) as runtime:
        begun = asyncio.get_running_loop().time()
        outputs = [one async for one in outputs_of(runtime, request)]
        took = asyncio.get_running_loop().time() - begun
    assert took > steps * SLOW_S > 1.5 * limit_s
    images = [one for one in outputs if isinstance(one, ImageOutput)]
    assert [one.step for one in images if one.step] == list(range(1, steps + 1))
    assert all(a.step <= b.step for a, b in pairwise(images[:-1]))
