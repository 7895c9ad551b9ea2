"""LTX-2's two passes as one pipeline: what the recipe makes by hand, alone and together."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    LTX2ConditionPipeline,
    LTX2LatentUpsamplePipeline,
)
from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from diffusers.pipelines.ltx2.utils import STAGE_2_DISTILLED_SIGMA_VALUES
from PIL import Image
from support.denoising.begun_together import begin_together
from support.media.sent_sound import check, pcm_of
from support.models.loras import write_lora
from support.stages.stage_outputs import stage_over
from support.tiny_pipelines import quiet
from support.tiny_pipelines.films import GUIDED
from support.tiny_pipelines.sounds import make_sound

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.ltx2 import LTX2TwoStagePipeline
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_gateway import Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

PATH = "omnistage.stages.diffusion.ltx2.LTX2TwoStagePipeline"
HALF, WHOLE = {"height": 32, "width": 32}, {"height": 64, "width": 64}
FRAMES = {"num_frames": 5}
STEPS = {"num_inference_steps": 2, "guidance_scale": 2.0}
PROMPTS = ("a cat", "a dog", "an ox")
FPS = 25
NUM_CALLS = 2 * 3 + 3  # three a guided step of the first pass, one a step of the second
FIRST = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LTX-2 with its upsampler, and the file of a LoRA beside it."""
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("ltx2")
    make_sound("ltx2").save_pretrained(made)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"in_channels": 4, "mid_channels": 32, "num_blocks_per_stage": 1}
        LTX2LatentUpsamplerModel(**sizes).save_pretrained(made / "latent_upsampler")
    return made


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lora(make_sound("ltx2"), tmp_path_factory.mktemp("lora"), seed=0)


def by_hand(folder: Path, lora: Path | None, seed: int, image: Any = None) -> Any:
    """Make a video as Diffusers' documentation does: two calls, and the LoRA for the second."""
    loaded = DiffusionPipeline.from_pretrained(folder)
    pipe = quiet(LTX2ConditionPipeline(**loaded.components))
    conditions = [] if image is None else [LTX2VideoCondition(image)]
    common = {
        "prompt": PROMPTS[seed],
        "conditions": conditions,
        "generator": torch.Generator().manual_seed(seed),
        "frame_rate": FPS,
        **FRAMES,
    }
    with torch.inference_mode():
        video, audio = pipe(
            **common, **HALF, **STEPS, **GUIDED, output_type="latent", return_dict=False
        )
        upsampler = LTX2LatentUpsamplerModel.from_pretrained(folder, subfolder="latent_upsampler")
        enlarge = LTX2LatentUpsamplePipeline(vae=pipe.vae, latent_upsampler=upsampler)
        larger = enlarge(latents=video, output_type="latent", return_dict=False)[0]
        if lora is not None:
            pipe.load_lora_weights(lora.parent, weight_name=lora.name, adapter_name="second")
            pipe.set_adapters("second", 1.0)
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(
            pipe.scheduler.config, use_dynamic_shifting=False, shift_terminal=None
        )
        return pipe(
            **common,
            **WHOLE,
            latents=larger,
            audio_latents=audio,
            sigmas=STAGE_2_DISTILLED_SIGMA_VALUES,
            noise_scale=STAGE_2_DISTILLED_SIGMA_VALUES[0],
            num_inference_steps=len(STAGE_2_DISTILLED_SIGMA_VALUES),
            guidance_scale=1.0,
            stg_scale=0.0,
            modality_scale=1.0,
            audio_guidance_scale=1.0,
            audio_stg_scale=0.0,
            audio_modality_scale=1.0,
            output_type="np",
        )


def opened(name: str, seed: int, image: Any = None, **more: Any) -> Opened:
    fields = {"prompt": PROMPTS[seed], **WHOLE, **FRAMES, **STEPS, "fps": FPS, **more}
    media = [] if image is None else [GivenMedium("image", "image")]
    tensors = {} if image is None else {"image": Tensor.from_numpy(image)}
    return Opened(name, Request(Draw(fields, media), ["video"], seed=seed), tensors)


def distance(outputs: Any, name: str, wanted: Any) -> int:
    """Return how far a request's frames are from those; its audio is compared, too."""
    check(pcm_of(outputs, name), wanted.audio[0].numpy())
    sent = [one.tensors for one in outputs.chunks[name] if "pixels" in one.tensors]
    frames = np.stack([one["pixels"].numpy() for one in sent]).astype(int)
    assert frames.shape == (FRAMES["num_frames"], 64, 64, 3)
    return int(np.abs(frames - np.stack(to_uint8(wanted.frames[0]))).max())


async def test_two_passes_make_what_the_recipe_makes_by_hand(folder: Path, lora: Path) -> None:
    engine = {
        "pipeline_class": PATH,
        "custom_pipeline_args": {"lora": str(lora)},
        "call_defaults": GUIDED,
    }
    stage, outputs = stage_over(folder, engine, **WHOLE, **FRAMES)
    await stage.start()
    await stage.serve(opened("alone", 0))
    before = dict(stage._made.engine.batch_sizes)
    begin_together(stage._made.engine, 3)
    await asyncio.gather(*(stage.serve(opened(str(seed), seed)) for seed in range(3)))
    together = {
        size: num - before.get(size, 0) for size, num in stage._made.engine.batch_sizes.items()
    }
    await stage.serve(opened("image", 1, FIRST))
    with pytest.raises(RequestError, match="must be a multiple of"):
        await stage.serve(opened("size", 0, height=32, width=96))
    await stage.close()
    assert before == {1: NUM_CALLS}
    assert sum(size * num for size, num in together.items()) == 3 * NUM_CALLS
    assert max(together) > 1, "requests in the same pass share forwards"
    wanted = [by_hand(folder, lora, seed) for seed in range(3)]
    assert distance(outputs, "alone", wanted[0]) <= 1
    assert max(distance(outputs, str(seed), wanted[seed]) for seed in range(3)) <= 1
    assert distance(outputs, "image", by_hand(folder, lora, 1, Image.fromarray(FIRST))) <= 1
    assert distance(outputs, "1", wanted[1]) <= 1
    unchanged = by_hand(folder, None, 0).frames
    assert np.abs(unchanged - wanted[0].frames).max() > 0.1, "the LoRA changes the second pass"
    steps = [one.message for one in outputs.chunks["alone"] if isinstance(one.message, Step)]
    assert [(one.step, one.num_steps) for one in steps if one.step] == [(n, 5) for n in range(1, 6)]


def test_a_bare_call_is_the_recipe_too(folder: Path, lora: Path) -> None:
    pipeline = quiet(LTX2TwoStagePipeline.from_pretrained(folder, lora=str(lora)))
    with torch.inference_mode():
        made = [
            pipeline(
                prompt=PROMPTS[0],
                generator=torch.Generator().manual_seed(0),
                frame_rate=FPS,
                output_type="np",
                **WHOLE,
                **FRAMES,
                **STEPS,
                **GUIDED,
            )
            for _ in range(2)
        ]
    wanted = by_hand(folder, lora, 0)
    for one in made:
        assert np.abs(one.frames - wanted.frames).max() < 1e-4
        assert (one.audio - wanted.audio).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lora": "/nothing"}, "custom_pipeline_args.lora: /nothing is no file"),
        ({"lore": "a"}, "custom_pipeline_args.lore: no argument; its argument: lora"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        LTX2TwoStagePipeline.from_pretrained(folder, **arguments)


def test_a_folder_without_an_upsampler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no folder latent_upsampler"):
        LTX2TwoStagePipeline.from_pretrained(tmp_path)
