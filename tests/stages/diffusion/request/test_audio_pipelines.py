"""Pipelines of audio below the stage: each equals its bare call, alone and together."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    StableAudio3AudioToAudioPipeline,
    StableAudio3InpaintPipeline,
)
from support.media.sent_sound import SAMPLE, check, pcm_of
from support.stages.stage_outputs import stage_over
from support.tiny_pipelines.sounds import RATE, make_sound

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_gateway import Step
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened

NUM_TOGETHER = 3
PROMPTS = ("a cat", "rain at night", "a slow piano")


@dataclass(frozen=True)
class Sounds:
    """A tiny pipeline: fields of requests, and the same as arguments of its call."""

    fields: Mapping[str, Any]
    arguments: Mapping[str, Any]
    both: Mapping[str, Any] = field(default_factory=dict)
    channels: int = 2


NAMED = {
    "stable-audio": Sounds(
        {"audio_length": 0.5, "audio_start": 0.25},
        {"audio_end_in_s": 0.75, "audio_start_in_s": 0.25},
        {"guidance_scale": 3.0, "negative_prompt": "hiss"},
    ),
    "stable-audio-3": Sounds({"audio_length": 0.5}, {"duration": 0.5}),
    "ace-step": Sounds(
        {"audio_length": 1.0}, {"audio_duration": 1.0}, {"lyrics": "la la", "guidance_scale": 3.0}
    ),
    "longcat": Sounds({"audio_length": 0.5}, {"audio_duration_s": 0.5}, channels=1),
}


def audios(bare: Any, sounds: Sounds, seed: int) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        made: npt.NDArray[np.float32] = bare(
            prompt=PROMPTS[seed],
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(seed),
            output_type="np",
            **sounds.arguments,
            **sounds.both,
        ).audios[0]
    return made


@pytest.mark.parametrize("name", NAMED)
async def test_audio_equals_the_bare_pipeline_s(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    make_sound(name).save_pretrained(tmp_path)
    stage, outputs = stage_over(tmp_path)
    ready = await stage.start()
    assert ready.sample_rate_hz == RATE
    sounds = NAMED[name]

    async def ask(request_id: str, seed: int) -> None:
        fields = {"prompt": PROMPTS[seed], "num_inference_steps": 2}
        body = Draw({**fields, **sounds.fields, **sounds.both})
        await stage.serve(Opened(request_id, Request(body, ["audio"], seed=seed)))

    await ask("alone", 0)
    await asyncio.gather(*(ask(str(seed), seed) for seed in range(NUM_TOGETHER)))
    await stage.close()
    bare = DiffusionPipeline.from_pretrained(tmp_path)
    bare.set_progress_bar_config(disable=True)
    check(pcm_of(outputs, "alone"), audios(bare, sounds, 0))
    for seed in range(NUM_TOGETHER):
        pcm = pcm_of(outputs, str(seed))
        assert (pcm.ndim == 2) == (sounds.channels == 2)
        check(pcm, audios(bare, sounds, seed))
    steps = [one.message for one in outputs.chunks["0"] if isinstance(one.message, Step)]
    assert {one.output for one in steps} == {"audio"}


# Of each the class that makes it, the argument for the audio, the one for its length, and `extra`.
# ACE-Step encodes audio with noise of torch's global generator: no two of its calls are equal.
GIVEN: Mapping[str, tuple[str, type | None, str, str, Mapping[str, Any]]] = {
    "stable-audio": ("stable-audio", None, "initial_audio_waveforms", "audio_end_in_s", {}),
    "stable-audio-3": (
        "stable-audio-3",
        StableAudio3AudioToAudioPipeline,
        "audio",
        "duration",
        {"init_noise_level": 0.5},
    ),
    "stable-audio-3-inpaint": (
        "stable-audio-3",
        StableAudio3InpaintPipeline,
        "audio",
        "duration",
        {"mask_start_seconds": 0.1, "mask_end_seconds": 0.3},
    ),
}


@pytest.mark.parametrize("case", GIVEN)
async def test_audio_to_start_from_is_that_of_the_bare_call(case: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    name, made, argument, length, extra = GIVEN[case]
    make_sound(name).save_pretrained(tmp_path)
    stage, outputs = stage_over(tmp_path)
    await stage.start()
    wave = np.random.default_rng(0).uniform(-0.5, 0.5, (1, RATE // 2)).astype(np.float32)
    fields: dict[str, Any] = {"prompt": PROMPTS[0], "num_inference_steps": 2}
    body = Draw(
        {**fields, "audio_length": 0.5, "extra": extra}, [GivenMedium("audio", "audio0", RATE)]
    )
    tensors = {"audio0": Tensor.from_numpy(wave)}
    await stage.serve(Opened("a", Request(body, ["audio"], seed=0), tensors))
    await stage.close()
    bare = DiffusionPipeline.from_pretrained(tmp_path)
    if made is not None:
        bare = made(**bare.components)
    bare.set_progress_bar_config(disable=True)
    stereo = torch.from_numpy(wave).expand(2, -1)
    given = stereo[None]
    arguments = {length: 0.5, **extra, argument: given}
    if name == "stable-audio":
        arguments["initial_audio_sampling_rate"] = RATE
    wanted = audios(bare, Sounds({}, arguments), 0)
    check(pcm_of(outputs, "a"), wanted)
    silence = {**arguments, argument: torch.zeros_like(given)}
    assert np.abs(audios(bare, Sounds({}, silence), 0) - wanted).max() > SAMPLE
