"""Pictures over HTTP against the bare pipeline."""

import asyncio
import base64
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml
from diffusers import DiffusionPipeline
from openai import OpenAI
from PIL import Image
from support.server import TinyServer, running_server

from omnistage.stages.diffusion.stage import OPTIONS
from omnistage.stages.diffusion.tiny import write_tiny_qwen_image
from omnistage.stages.graph import StageGraph
from omnistage.stages.pick import GRAPHS, pick_graph

pytestmark = pytest.mark.engine

SMALL = {"height": 64, "width": 64}
STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "qwen-image"
    write_tiny_qwen_image(path)
    return path


@pytest.fixture(scope="module")
def images(folder: Path) -> Iterator[TinyServer]:
    graph = yaml.safe_load((GRAPHS / "diffusers.yaml").read_text())
    graph["stages"]["dit"]["engine"] = {"warm_up": SMALL}
    path = folder.parent / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    with running_server(str(path), folder.parent / "log", "--model", str(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def bare(folder: Path) -> Any:
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def expected(bare: Any, prompt: str, seed: int, **more: Any) -> npt.NDArray[np.uint8]:
    generator = torch.Generator().manual_seed(seed)
    arguments = {**SMALL, "num_inference_steps": STEPS, "output_type": "np", **more}
    with torch.inference_mode():
        made = bare(prompt=prompt, generator=generator, **arguments).images
    pictures: npt.NDArray[np.uint8] = (made * 255).round().astype(np.uint8)
    return pictures


def read(data: str) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


async def ask(server: TinyServer, prompt: str, seed: int, **more: Any) -> httpx.Response:
    body = {"prompt": prompt, "size": "64x64", "num_inference_steps": STEPS, "seed": seed, **more}
    async with httpx.AsyncClient(timeout=120) as client:
        return await client.post(f"{server.url}/v1/images/generations", json=body)


def is_same(actual: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8]) -> bool:
    """But for a rounding to the next of 256 levels."""
    return bool(np.abs(actual.astype(int) - wanted.astype(int)).max() <= 1)


async def test_one_picture_equals_the_bare_pipeline(images: TinyServer, bare: Any) -> None:
    answer = (await ask(images, "a cat", 1)).json()
    assert answer["size"] == "64x64"
    (picture,) = (read(one["b64_json"]) for one in answer["data"])
    (wanted,) = expected(bare, "a cat", 1)
    assert is_same(picture, wanted)
    assert picture.std() > 1


async def test_guidance_steps_sizes_and_several_at_once(images: TinyServer, bare: Any) -> None:
    settings: list[dict[str, Any]] = [
        {"true_cfg_scale": 4.0, "negative_prompt": "a dog"},
        {"num_inference_steps": 5},
        {"true_cfg_scale": 2.0, "negative_prompt": "rain", "num_inference_steps": 4},
        {"size": "96x64"},
    ]
    answers = await asyncio.gather(
        *(ask(images, f"cat {seed}", seed, **more) for seed, more in enumerate(settings))
    )
    for seed, (answer, more) in enumerate(zip(answers, settings, strict=True)):
        assert answer.status_code == 200, answer.text
        (picture,) = (read(one["b64_json"]) for one in answer.json()["data"])
        arguments = {**more, "width": 96} if "size" in more else dict(more)
        arguments.pop("size", None)
        (wanted,) = expected(bare, f"cat {seed}", seed, **arguments)
        assert is_same(picture, wanted)


def test_two_pictures_by_the_sdk(images: TinyServer, bare: Any) -> None:
    with OpenAI(
        base_url=f"{images.url}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        made = client.images.generate(
            prompt="a cat",
            n=2,
            size="64x64",
            extra_body={"seed": 3, "num_inference_steps": STEPS},
        )
    wanted = expected(bare, "a cat", 3, num_images_per_prompt=2)
    assert made.data is not None
    for one, picture in zip(made.data, wanted, strict=True):
        assert one.b64_json is not None
        assert is_same(read(one.b64_json), picture)


@pytest.mark.parametrize("form", ["jpeg", "webp"])
async def test_other_formats(images: TinyServer, form: str) -> None:
    more = {"output_format": form, "output_compression": 80}
    answer = (await ask(images, "a cat", 1, **more)).json()
    picture = Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"])))
    assert (picture.format, picture.size) == (form.upper(), (64, 64))
    assert answer["output_format"] == form


async def test_a_client_that_hangs_up_ends_its_request(images: TinyServer) -> None:
    body = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 1000}
    async with httpx.AsyncClient(timeout=2) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{images.url}/v1/images/generations", json=body)
    started = time.monotonic()
    while images.health()["dit"]["running"]:
        assert time.monotonic() - started < 5
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"n": 11}, "n"),
        ({"size": "huge"}, "size"),
        ({"size": "8x8"}, "size"),
        ({"size": "64x64", "width": 64}, "size"),
        ({"stream": True}, "stream"),
        ({"response_format": "url"}, "response_format"),
        ({"output_compression": 50}, "output_compression"),
        ({"guidance_scale": -1}, "guidance_scale"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
    ],
)
async def test_what_cannot_be_made_is_a_400(
    body: dict[str, Any], param: str, images: TinyServer
) -> None:
    asked = {"prompt": "a cat", **body}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{images.url}/v1/images/generations", json=asked)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param


async def test_an_image_model_does_not_chat(images: TinyServer) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        answer = await client.post(f"{images.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "makes image" in answer.json()["error"]["message"]


async def test_the_documented_request_and_graph_work(images: TinyServer) -> None:
    text = (Path(__file__).parents[2] / "docs" / "diffusion.md").read_text()
    (body,) = re.findall(r"-d '(\{.*?\})'", text, re.DOTALL)
    asked = {**json.loads(body), "size": "64x64"}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{images.url}/v1/images/generations", json=asked)
    assert answer.status_code == 200, answer.text
    (graph,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    stage = StageGraph.model_validate({"model": "a", **yaml.safe_load(graph)}).stages["dit"]
    assert set(stage.engine) < OPTIONS


def test_a_folder_of_a_pipeline_picks_its_graph(folder: Path) -> None:
    assert pick_graph(str(folder), 0).name == "diffusers.yaml"
