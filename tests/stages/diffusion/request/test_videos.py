"""A video pipeline below the stage."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from support.stages.stage_outputs import stage_over
from support.tiny_pipelines import quiet

from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.diffusion.request.videos import counted
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_gateway import ImagePixels, Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

SMALL = {"height": 32, "width": 32, "num_frames": 5}
BODY = {"prompt": "a cat", **SMALL, "num_inference_steps": 2, "guidance_scale": 1.0}


async def test_frames_of_a_video_equal_the_bare_pipeline_s(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_tiny("wan", tmp_path)
    stage, outputs = stage_over(tmp_path, **SMALL)
    await stage.start()

    async def ask(seed: int) -> None:
        await stage.serve(Opened(str(seed), Request(Draw(BODY), ["video"], seed=seed)))

    await asyncio.gather(*map(ask, range(3)))
    with pytest.raises(RequestError, match="makes no image; it makes video"):
        await stage.serve(Opened("a", Request(Draw(BODY), ["image"])))
    await stage.close()
    bare = quiet(DiffusionPipeline.from_pretrained(tmp_path))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            frames = bare(**BODY, generator=generator).frames[0]
        told = [chunk.message for chunk in outputs.chunks[str(seed)]]
        assert {one.output for one in told if isinstance(one, ImagePixels | Step)} == {"video"}
        difference = outputs.pixels(str(seed)).astype(int) - np.stack(to_uint8(frames))
        assert difference.shape == (5, 32, 32, 3)
        assert np.abs(difference).max() <= 1


def test_how_many_is_asked_as_the_pipeline_takes_it() -> None:
    assert counted(2, {"prompt": "a"}, ["prompt", "num_videos_per_prompt"]) == {
        "prompt": "a",
        "num_videos_per_prompt": 2,
    }
    assert counted(2, {"prompt": "a"}, ["prompt"]) == {"prompt": ["a", "a"]}
    assert counted(1, {"prompt": "a"}, ["prompt"]) == {"prompt": "a"}
