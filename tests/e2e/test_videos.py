"""A video on its whole way: HTTP, stage, file. Its frames are the bare pipeline's."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.image_requests import bare_pipeline, picture_server
from support.server import TinyServer

from omnistage.server.media.mp4 import encode
from omnistage.server.runtime.request import ImageOutput
from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.request.outputs import to_uint8

pytestmark = pytest.mark.engine

FRAMES = npt.NDArray[np.uint8]
NUM_FRAMES, HEIGHT, WIDTH, SEED = 9, 48, 64, 7
BODY = {
    "prompt": "a red house by the sea",
    "height": HEIGHT,
    "width": WIDTH,
    "num_frames": NUM_FRAMES,
    "num_inference_steps": 3,
    "guidance_scale": 3.0,
    "negative_prompt": "rain",
}
# Of 255, in mean: what h264 and colours in quarter size take from noise; frames in another order
# differ by 30.
LOSS = 10.0


@pytest.fixture(scope="module")
def tiny_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines") / "wan"
    write_tiny("wan", folder)
    return folder


@pytest.fixture(scope="module")
def videos(tiny_wan: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    with picture_server("diffusers.yaml", tiny_wan, tmp_path_factory.mktemp("videos")) as server:
        yield server


@pytest.fixture(scope="module")
def bare_frames(tiny_wan: Path) -> FRAMES:
    """What the pipeline makes by itself, uint8 [n, height, width, 3]."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.inference_mode():
        made = bare_pipeline(tiny_wan)(**BODY, generator=generator).frames[0]
    return np.stack(to_uint8(made))


def file_of(frames: FRAMES, fps: float) -> bytes:
    """The file that the gateway makes of these frames."""
    return encode([ImageOutput(frame.tobytes(), WIDTH, HEIGHT) for frame in frames], fps)


def frames_of(data: bytes) -> FRAMES:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


def ask(server: TinyServer, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/videos/sync", json={**BODY, **more}, timeout=60)


def test_the_frames_of_a_file_are_those_of_the_bare_pipeline(
    videos: TinyServer, bare_frames: FRAMES
) -> None:
    answer = ask(videos, seed=SEED, fps=8)
    assert answer.status_code == 200, answer.text
    seen = frames_of(answer.content)
    assert seen.shape == bare_frames.shape == (NUM_FRAMES, HEIGHT, WIDTH, 3)
    assert np.array_equal(seen, frames_of(file_of(bare_frames, 8)))
    assert np.abs(seen.astype(int) - bare_frames).mean() < LOSS
    assert np.abs(seen.astype(int) - np.roll(bare_frames, 1, axis=0)).mean() > 2 * LOSS
    others = ask(videos, seed=SEED + 1, fps=8)
    assert not np.array_equal(frames_of(others.content), seen)


def test_a_file_has_16_frames_per_second_where_neither_client_nor_pipeline_says(
    videos: TinyServer,
) -> None:
    with av.open(io.BytesIO(ask(videos).content)) as container:
        assert container.streams.video[0].average_rate == 16


def test_it_announces_videos_alone(videos: TinyServer) -> None:
    (model,) = httpx.get(f"{videos.url}/v1/models").json()["data"]
    assert model["output_modalities"] == ["video"]
    answer = httpx.post(f"{videos.url}/v1/images/generations", json={"prompt": "a"})
    assert answer.status_code == 400
    wanted = "This model makes no images; it makes video: use /v1/videos."
    assert answer.json()["error"]["message"] == wanted


def test_a_size_that_is_not_made_is_a_400(videos: TinyServer) -> None:
    answer = ask(videos, height=40)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "height"
    assert "64x40 is not made by this model: each side must be a multiple of 16" in error["message"]
