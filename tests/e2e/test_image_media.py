"""Images with media over HTTP, through real processes: each equals the bare pipeline's."""

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from support.image_requests import picture_server
from support.media_pipelines import GIVEN, Given
from support.pictures import file_of, pixels_of
from support.tiny_pipelines import quiet

from omnistage.stages.diffusion.request.outputs import pictures_of

pytestmark = pytest.mark.engine

STEPS = {"num_inference_steps": 2}
# The others of GIVEN: tests/stages/diffusion/request/test_stage_media.py.
NAMES = ("qwen-controlnet", "flux-fill")
PNG = "image/png"


def files_of(given: Given) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return the media of a request as files; what is transparent in a mask is repainted."""
    files = []
    for field, several in given.media.items():
        for one in several:
            image = Image.fromarray(one)
            if field == "mask":
                image = Image.fromarray(np.dstack([one, one, one, 255 - one]))
            name = f"{field}[]" if len(several) > 1 else field
            files.append((name, ("a.png", file_of(image), PNG)))
    return files


def ask(url: str, given: Given, body: dict[str, Any]) -> httpx.Response:
    """Send a form with images to edit, or JSON with what controls."""
    files = files_of(given)
    if "image" in given.media:
        fields = {name: str(value) for name, value in body.items()}
        return httpx.post(f"{url}/v1/images/edits", data=fields, files=files, timeout=300)
    ((_, (_, data, _)),) = files
    control = {"image_url": "data:image/png;base64," + base64.b64encode(data).decode()}
    body = {**body, "control_image": control}
    return httpx.post(f"{url}/v1/images/generations", json=body, timeout=300)


@pytest.mark.parametrize("name", NAMES)
def test_media_of_a_request_make_what_the_bare_pipeline_makes(name: str, tmp_path: Path) -> None:
    given = GIVEN[name]
    model = tmp_path / "model"
    given.write(model)
    warm_up = {**given.body, **STEPS}
    with picture_server("diffusers.yaml", model, tmp_path, warm_up=warm_up) as server:
        body = {"prompt": "a cat", "seed": 3, **STEPS, **given.body}
        answer = ask(server.url, given, body)
        assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    made = np.stack([pixels_of(one["b64_json"]) for one in data])
    bare = quiet(DiffusionPipeline.from_pretrained(model))
    arguments = {**STEPS, **given.body, **given.arguments, "output_type": "np"}
    with torch.inference_mode():
        wanted = bare(prompt="a cat", generator=torch.Generator().manual_seed(3), **arguments)
    difference = made.astype(int) - np.stack(pictures_of(wanted, 1))
    assert np.abs(difference).max() <= 1
    assert made.std() > 1
