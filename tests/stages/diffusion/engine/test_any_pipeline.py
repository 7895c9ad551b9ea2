"""A pipeline that nobody thought of: drawn from Diffusers' own list, served from its folder."""

import asyncio
import inspect
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING
from support.denoising.begun_together import begin_together
from support.models.tiny_if import make_tiny_if
from support.stages.stage_outputs import stage_over
from support.tiny_pipelines import doubled, error, made, quiet, result

from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened

SEED = 5
IMAGE_ARGUMENTS = {"image", "control_image", "controlnet_conditioning_scale"}


def test_the_draw() -> None:
    """The first is a ControlNet, which makes no picture of a text alone; the next is served."""
    classes = {kind.__name__: kind for kind in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()}
    drawn = random.Random(SEED).sample(sorted(classes), len(classes))
    assert drawn[:2] == ["StableDiffusion3ControlNetPipeline", "IFPipeline"]
    first, second = (inspect.signature(classes[name].__call__).parameters for name in drawn[:2])
    assert IMAGE_ARGUMENTS & first.keys()
    assert not IMAGE_ARGUMENTS & second.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("any")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        make_tiny_if().save_pretrained(path)
    return path


def load(folder: Path) -> Any:
    return quiet(DiffusionPipeline.from_pretrained(folder))


def arguments(seed: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": ("a cat", "rain in the night")[seed % 2],
        "height": 16,
        "width": 16,
        "num_inference_steps": 2 + seed % 4,
        "guidance_scale": (1.0, 2.0, 3.0)[seed % 3],
        "generator": torch.Generator().manual_seed(seed),
        **more,
    }


def expected(bare: Any, seed: int, kind: str) -> Any:
    with torch.inference_mode():
        return bare(**arguments(seed, output_type=kind))


def test_one_at_a_time_and_eight_at_once_equal_the_bare_pipeline(folder: Path) -> None:
    bare, pipeline = load(folder), load(folder)
    wanted = [made(expected(bare, seed, "pt")) for seed in range(8)]
    once = arguments(0, num_inference_steps=1, output_type="pt")
    engine = StepBatcher(pipeline, once, doubled(once))
    for seed, images in enumerate(wanted):
        job = engine.submit(**arguments(seed, output_type="pt"))
        assert error(result(job), images) < 1e-5
    engine.batch_sizes.clear()
    begin_together(engine, 8)
    jobs = [engine.submit(**arguments(seed, output_type="pt")) for seed in range(8)]
    for job, images in zip(jobs, wanted, strict=True):
        assert error(result(job), images) < 1e-5
    engine.close()
    assert max(engine.batch_sizes) > 1


async def test_its_folder_is_served(folder: Path) -> None:
    stage, outputs = stage_over(folder, height=16, width=16)
    await stage.start()

    async def ask(seed: int) -> None:
        body = {**arguments(seed), "n": 1}
        del body["generator"]
        await stage.serve(Opened(str(seed), Request(Draw(body), ["image"], seed=seed)))

    await asyncio.gather(*map(ask, range(4)))
    await stage.close()
    bare = load(folder)
    for seed in range(4):
        (wanted,) = to_uint8(expected(bare, seed, "np").images)
        difference = outputs.pixels(str(seed))[0].astype(int) - wanted
        assert np.abs(difference).max() <= 1
