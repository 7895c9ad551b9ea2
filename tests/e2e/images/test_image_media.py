"""Images with media over HTTP, through real processes: each equals the bare pipeline's."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from support.media.pictures import file_of, pixels_of
from support.models.media_pipelines import GIVEN, Given, picture
from support.servers.image_requests import picture_server
from support.tiny_pipelines import quiet
from support.tiny_pipelines.beside import with_second, written

from omnistage.stages.diffusion.request.outputs import pictures_of

pytestmark = pytest.mark.engine

STEPS = {"num_inference_steps": 2}
# All of GIVEN, in the stage alone: tests/stages/diffusion/request/test_stage_media.py.
NAMES = (
    "qwen-controlnet",
    pytest.param("flux-fill", marks=pytest.mark.repeat),
    pytest.param("edit-plus", marks=pytest.mark.repeat),
    pytest.param("layered", marks=pytest.mark.repeat),
)
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
        return httpx.post(f"{url}/v1/images/edits", data=fields, files=files, timeout=600)
    ((_, (_, data, _)),) = files
    control = {"image_url": "data:image/png;base64," + base64.b64encode(data).decode()}
    body = {**body, "control_image": control}
    return httpx.post(f"{url}/v1/images/generations", json=body, timeout=600)


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


def test_two_controlnets_beside_a_pipeline_get_an_image_and_a_scale_each(tmp_path: Path) -> None:
    bare, model, net = written("StableDiffusionXLControlNetPipeline", tmp_path)
    second, both = with_second(bare, tmp_path / "second")
    images = [Image.fromarray(picture(seed, 32)) for seed in (1, 2)]
    scales = {"controlnet_conditioning_scale": [0.5, 0.8], "control_guidance_start": [0.0, 0.4]}
    body = {"prompt": "a cat", "seed": 3, "size": "32x32", **STEPS, **scales}
    folders = [str(net), str(second)]
    warm_up = {"height": 32, "width": 32, **STEPS}
    with picture_server(
        "diffusers.yaml", model, tmp_path, warm_up=warm_up, controlnet=folders
    ) as server:
        made = [
            ask_controlled(server.url, body, named)
            for named in (
                [("control_image[]", images[0]), ("control_image[]", images[1])],
                [("control_image[]", images[1]), ("control_image[]", images[0])],
            )
        ]
        alone = httpx.post(
            f"{server.url}/v1/images/generations",
            data=form_of(body),
            files={"control_image": ("a.png", file_of(images[0]), PNG)},
            timeout=600,
        )
    generator = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        wanted = both(
            prompt="a cat", image=images, generator=generator, output_type="np", **warm_up, **scales
        )
    difference = made[0].astype(int) - pictures_of(wanted, 1)[0]
    assert np.abs(difference).max() <= 1
    assert np.abs(made[0].astype(int) - made[1]).max() > 1, "the images count in their order"
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "control_image")


def form_of(body: dict[str, Any]) -> dict[str, str]:
    return {name: v if isinstance(v, str) else json.dumps(v) for name, v in body.items()}


def ask_controlled(
    url: str, body: dict[str, Any], named: list[tuple[str, Image.Image]]
) -> npt.NDArray[np.uint8]:
    """Send a form with control images; returns the image."""
    files = [(name, ("a.png", file_of(image), PNG)) for name, image in named]
    answer = httpx.post(
        f"{url}/v1/images/generations", data=form_of(body), files=files, timeout=600
    )
    assert answer.status_code == 200, answer.text
    return pixels_of(answer.json()["data"][0]["b64_json"])
