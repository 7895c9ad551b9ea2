"""Videos of images and of videos over HTTP, through real processes, as the bare pipelines make."""

import io
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from support.media.pictures import file_of
from support.models.media_pipelines import GIVEN, Given
from support.servers.image_requests import picture_server
from support.tiny_pipelines import quiet

from omnistage.server.media.video.mp4 import encode
from omnistage.server.offline import content
from omnistage.server.runtime.request import ImageOutput
from omnistage.stages.diffusion.request.outputs import pictures_of

pytestmark = pytest.mark.engine

STEPS = {"num_inference_steps": 2}
FPS = 8
FIELDS = {"image": "input_reference"}  # the API's names
Frames = npt.NDArray[np.uint8]


def files_of(given: Given) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return the media of a request as files; what is transparent in a mask is repainted."""
    files = []
    for field, several in given.media.items():
        for one in several:
            if one.ndim == 4:
                file = ("a.mkv", content.file_of((one, FPS), "video", field), "video/x-matroska")
            else:
                made = np.dstack([one, one, one, 255 - one]) if one.ndim == 2 else one
                file = ("a.png", file_of(Image.fromarray(made)), "image/png")
            files.append((FIELDS.get(field, field), file))
    return files


def frames_of(data: bytes) -> Frames:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


def bare_frames(bare: Any, given: Given) -> Frames:
    arguments = {**STEPS, **given.body, **given.arguments, "output_type": "np"}
    generator = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        made = bare(prompt="a cat", generator=generator, **arguments)
    return np.stack(pictures_of(made, 1))


def written_and_read(frames: Frames) -> Frames:
    """Return the frames of the file that the gateway makes of these."""
    height, width = frames.shape[1:3]
    return frames_of(encode([ImageOutput(one.tobytes(), width, height) for one in frames], FPS))


@pytest.mark.parametrize(
    "names",
    [
        ("wan-i2v",),
        pytest.param(("hunyuan-i2v",), marks=pytest.mark.repeat),
        ("vace", "vace-first-and-last"),
    ],
    ids=lambda names: names[0],
)
def test_a_file_has_the_bare_pipeline_s_frames_but_for_its_encoding(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    first = GIVEN[names[0]]
    first.write(model)
    bare = quiet(DiffusionPipeline.from_pretrained(model))
    warm_up = {**first.body, **STEPS}
    with picture_server("diffusers.yaml", model, tmp_path, warm_up=warm_up) as server:
        url = f"{server.url}/v1/videos/sync"
        for given in map(GIVEN.__getitem__, names):
            body = {"prompt": "a cat", "seed": 3, "fps": FPS, **STEPS, **given.body}
            fields = {name: str(value) for name, value in body.items()}
            answer = httpx.post(url, data=fields, files=files_of(given), timeout=600)
            assert answer.status_code == 200, answer.text
            seen, frames = frames_of(answer.content), bare_frames(bare, given)
            wanted = written_and_read(frames)
            assert frames.std() > 1
            assert seen.shape == wanted.shape
            # A pixel that is rounded otherwise before the encoding may change its block a little.
            assert np.abs(seen.astype(int) - wanted).mean() < 0.1
            turned = written_and_read(frames[::-1])
            assert np.abs(seen.astype(int) - turned).mean() > 1
