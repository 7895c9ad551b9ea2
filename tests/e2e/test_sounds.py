"""Audio of pipelines on its whole way: HTTP, stage, file. Its samples are the bare pipeline's."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import torch
from support.image_requests import bare_pipeline, picture_server
from support.tiny_pipelines.sounds import RATE, make_sound

pytestmark = pytest.mark.engine

SEED = 7
STEPS = {"num_inference_steps": 2}
# Of each the fields of a request, and the same as arguments of the pipeline's call.
ASKED: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "stable-audio-3": ({"audio_length": 0.5}, {"duration": 0.5}),
    "ace-step": (
        {"audio_length": 1, "lyrics": "[verse]\nla la"},
        {"audio_duration": 1, "lyrics": "[verse]\nla la"},
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_generated_audio_is_the_bare_pipeline_s(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    make_sound(name).save_pretrained(folder)
    fields, arguments = ASKED[name]
    body = {"input": "a slow piano", "seed": SEED, **STEPS, **fields}
    with picture_server("diffusers.yaml", folder, tmp_path, warm_up=dict(arguments)) as server:
        answer = httpx.post(f"{server.url}/v1/audio/generate", json=body, timeout=60)
        models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert models[0]["output_modalities"] == ["audio"]
    assert answer.status_code == 200, answer.text
    with av.open(io.BytesIO(answer.content)) as container:
        (stream,) = container.streams
        assert (stream.rate, stream.channels) == (RATE, 2)
        samples = np.concatenate([one.to_ndarray() for one in container.decode(stream)], axis=1)
    generator = torch.Generator().manual_seed(SEED)
    with torch.inference_mode():
        made = bare_pipeline(folder)(
            prompt=body["input"], generator=generator, output_type="np", **STEPS, **arguments
        ).audios[0]
    assert np.abs(samples.reshape(-1, 2).T / 32767 - made.clip(-1, 1)).max() < 1e-4


def test_a_video_of_ltx_2_has_its_audio(tmp_path: Path) -> None:
    folder = tmp_path / "ltx2"
    make_sound("ltx2").save_pretrained(folder)
    size = {"height": 32, "width": 32, "num_frames": 9}
    body = {"prompt": "rain at night", **size, **STEPS, "fps": 25, "seed": SEED}
    with picture_server("diffusers.yaml", folder, tmp_path, warm_up=size) as server:
        answer = httpx.post(f"{server.url}/v1/videos/sync", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    with av.open(io.BytesIO(answer.content)) as container:
        video, audio = container.streams
        assert (video.codec.name, video.frames, video.average_rate) == ("h264", 9, 25)
        assert (audio.codec.name, audio.rate, audio.layout.name) == ("aac", 16_000, "stereo")
        lengths = [float(one.duration * one.time_base) for one in (video, audio)]
        assert lengths == pytest.approx([9 / 25, 9 / 25], abs=0.001)
        samples = np.concatenate([one.to_ndarray() for one in container.decode(audio)], axis=1)
    assert np.abs(samples).max() > 0.01, "it is not silent"
