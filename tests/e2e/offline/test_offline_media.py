"""Videos and audio from `Omni` over real engines: frames and samples are the bare pipeline's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableAudio3AudioToAudioPipeline
from PIL import Image
from support.models.media_pipelines import GIVEN
from support.servers.image_requests import bare_pipeline
from support.tiny_pipelines import quiet
from support.tiny_pipelines.sounds import RATE, make_sound

from omnistage import Answer, Omni
from omnistage.stages.diffusion.request.outputs import pictures_of

pytestmark = pytest.mark.engine

SEED = 3
STEPS = {"num_inference_steps": 2}
NOISED = {"init_noise_level": 0.5}
WAVE = np.random.default_rng(0).integers(-9000, 9000, (RATE // 2, 2), np.int16)


def bare(pipeline: Any, **arguments: Any) -> Any:
    """Return what a pipeline makes by itself."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.inference_mode():
        return pipeline(generator=generator, output_type="np", **{**STEPS, **arguments})


def test_audio_of_words_and_of_audio_is_the_bare_pipeline_s(tmp_path: Path) -> None:
    make_sound("stable-audio-3").save_pretrained(tmp_path)
    fields: dict[str, Any] = {"audio_length": 0.5, "seed": SEED, **STEPS}
    with Omni(tmp_path, stages={"dit": {"warm_up": STEPS}}) as omni:
        assert omni.modalities == ("audio",)
        of_words = omni.generate_audio("a slow piano", **fields)
        of_audio = omni.generate_audio("a slow piano", **fields, audio=(WAVE, RATE), extra=NOISED)
    plain = bare_pipeline(tmp_path)
    changing = quiet(StableAudio3AudioToAudioPipeline(**plain.components))
    given = torch.from_numpy(WAVE.T / np.float32(32768))[None]
    common = {"prompt": "a slow piano", "duration": 0.5}
    heard: list[Any] = []
    for answer, wanted in (
        (of_words, bare(plain, **common)),
        (of_audio, bare(changing, **common, audio=given, **NOISED)),
    ):
        assert answer.audio is not None
        assert answer.audio.sample_rate_hz == RATE
        made = wanted.audios[0].T.clip(-1, 1)
        heard.append(answer.audio.samples / 32767)
        assert np.abs(heard[-1] - made).max() < 1e-4
    assert np.abs(heard[0] - heard[1]).max() > 1e-3


def test_a_video_of_its_first_and_last_frame_is_the_bare_pipeline_s(tmp_path: Path) -> None:
    given = GIVEN["wan-i2v"]
    given.write(tmp_path)
    first, last = (Image.fromarray(given.media[one][0]) for one in ("image", "last_image"))
    body = {**STEPS, **given.body}
    with Omni(tmp_path, stages={"dit": {"warm_up": body}}) as omni:
        *steps, answer = omni.stream_video(
            "a cat", seed=SEED, input_reference=first, last_image=last, **body
        )
    made = bare(bare_pipeline(tmp_path), prompt="a cat", **{**body, **given.arguments})
    wanted = np.stack(pictures_of(made, 1))
    assert isinstance(answer, Answer)
    assert answer.video is not None
    assert len(steps) == body["num_inference_steps"]
    assert answer.video.frames.shape == wanted.shape
    assert np.abs(answer.video.frames.astype(int) - wanted).max() <= 1
    assert wanted.std() > 1
