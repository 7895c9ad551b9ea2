"""Pictures over HTTP against the bare pipeline."""

import asyncio
import base64
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml
from diffusers import AutoPipelineForImage2Image, AutoPipelineForInpainting
from openai import BadRequestError, OpenAI
from PIL import Image
from support.faults.hanging_up import ask_and_hang_up
from support.media.pictures import file_of, mask_png, pixels_of, png
from support.repository.metrics_docs import documented, exposed, families_in
from support.servers.image_requests import STEPS, ask, expected, is_same, pictures_of
from support.servers.server import TinyServer
from support.servers.snapshots import health_by_now, reported_page
from support.waiting import until, wait_until

from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.pick import pick_graph
from omnistage.stages.diffusion.assembly import OPTIONS
from omnistage.stages.diffusion.loading.loading import LoadOptions

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client(images: TinyServer) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{images.url}/v1",
        api_key="none",
        max_retries=0,
        default_headers={"Connection": "close"},  # a kept one is a descriptor left over
    ) as connected:
        yield connected


async def test_one_picture_equals_the_bare_pipeline(images: TinyServer, bare: Any) -> None:
    answer = (await ask(images, "a cat", 1)).json()
    assert answer["size"] == "64x64"
    picture = pixels_of(answer["data"][0]["b64_json"])
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
        (picture,) = pictures_of(answer)
        arguments = {**more, "width": 96} if "size" in more else dict(more)
        arguments.pop("size", None)
        (wanted,) = expected(bare, f"cat {seed}", seed, **arguments)
        assert is_same(picture, wanted)


def test_two_pictures_by_the_sdk(client: OpenAI, bare: Any) -> None:
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
        assert is_same(pixels_of(one.b64_json), picture)


async def test_several_prompts_in_one_request(images: TinyServer, bare: Any) -> None:
    prompts = ["a cat", "two red houses"]
    more = {"true_cfg_scale": 3.0, "negative_prompt": "rain"}
    made = pictures_of(await ask(images, prompts, 3, **more))
    wanted = expected(bare, prompts, 3, **{**more, "negative_prompt": ["rain"] * 2})
    for picture, of_bare in zip(made, wanted, strict=True):
        assert is_same(picture, of_bare)
    refused = await ask(images, prompts, 3, n=6)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("form", ["jpeg", "webp"])
async def test_other_formats(images: TinyServer, form: str) -> None:
    more = {"output_format": form, "output_compression": 80}
    answer = (await ask(images, "a cat", 1, **more)).json()
    picture = Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"])))
    assert (picture.format, picture.size) == (form.upper(), (64, 64))
    assert answer["output_format"] == form


async def num_sent(server: TinyServer) -> int:
    """How many chunks the stage has sent, once it has no request."""
    await assert_nothing_is_held(server)
    count: int = server.health()["dit"]["chunks_out"]
    return count


async def test_a_client_that_hangs_up_ends_its_request(images: TinyServer) -> None:
    before = await num_sent(images)
    pictures_of(await ask(images, "a cat", 1))
    whole = await num_sent(images) - before
    body = {"prompt": "a cat", "n": 4, "size": "256x256", "num_inference_steps": 1000}
    url = f"{images.url}/v1/images/generations"
    await ask_and_hang_up(url, lambda: images.health()["dit"]["running"], json=body)
    assert await num_sent(images) - before - whole < whole, "it was made to its end"


def test_a_client_that_leaves_after_a_preview_ends_its_request(
    images: TinyServer, client: OpenAI
) -> None:
    stream: Any = client.images.generate(
        prompt="a cat",
        size="64x64",
        stream=True,
        partial_images=3,
        extra_body={"num_inference_steps": 400},
    )
    assert next(stream).partial_image_index == 0
    stream.close()
    asyncio.run(assert_nothing_is_held(images))


async def assert_nothing_is_held(server: TinyServer) -> None:
    def is_free() -> bool:
        dit = server.health()["dit"]
        return not dit["running"] and not any(dit["held"].values())

    await until(is_free)


async def test_what_the_pipeline_cannot_make_is_a_400(images: TinyServer) -> None:
    answer = await ask(images, "a cat", 1, background="transparent")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "background"


TOO_MUCH = {"n": 10, "size": "4096x4096"}
WISH = {"messages": [{"role": "user", "content": "a cat"}], "modalities": ["image"]}
TEXT, EDIT, CHAT = "images/generations", "images/edits", "chat/completions"


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (TEXT, {"prompt": "a cat"}),
        (TEXT, {"prompt": "a cat", "stream": True}),
        (EDIT, {"prompt": "a cat"}),
        (CHAT, WISH),
        (CHAT, {**WISH, "stream": True}),
    ],
)
async def test_what_would_be_late_is_a_400_before_it_begins(
    path: str, more: dict[str, Any], images: TinyServer
) -> None:
    before = await asyncio.to_thread(health_by_now, images)
    url = f"{images.url}/v1/{path}"
    async with httpx.AsyncClient(timeout=600) as client:
        if path == EDIT:
            files = {"image": ("a.png", png(64, 64))}
            answer = await client.post(url, data={**TOO_MUCH, **more}, files=files)
        else:
            answer = await client.post(url, json={**TOO_MUCH, **more})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "too_much_work")
    assert error["param"] == "size"
    assert "size: 10 pictures of 4096x4096 are 168 megapixels at once" in error["message"]
    assert re.search(r"makes at most [0-9.]+ \(its deadlines are 120 and 30 s;", error["message"])
    pictures_of(await ask(images, "a cat", 1))
    dit = (await asyncio.to_thread(health_by_now, images))["dit"]
    assert (dit["requests_total"], dit["restarts"]) == (before["dit"]["requests_total"] + 1, 0)


def test_a_stream_has_previews_and_the_same_picture(client: OpenAI, bare: Any) -> None:
    """Seen by the SDK as it is: its strict validation knows three sizes only."""
    stream: Any = client.images.generate(
        prompt="a cat",
        size="64x64",
        stream=True,
        partial_images=2,
        extra_body={"seed": 3, "num_inference_steps": 6, "stream_progress": True},
    )
    steps, previews, pictures = [], [], []
    for event in stream:
        if event.type == "image_generation.progress":
            steps.append((event.step, event.steps))
        elif event.type == "image_generation.partial_image":
            previews.append(pixels_of(event.b64_json))
        else:
            pictures.append(pixels_of(event.b64_json))
            assert event.usage.output_tokens == 16
            assert 0 < event.usage.input_tokens < 20
    assert steps == [(step, 6) for step in range(1, 7)]
    (wanted,) = expected(bare, "a cat", 3, num_inference_steps=6)
    (picture,) = pictures
    assert is_same(picture, wanted)
    first, second = previews
    assert not is_same(first, second)


@pytest.mark.parametrize("task", [AutoPipelineForImage2Image, AutoPipelineForInpainting])
def test_edits_equal_the_bare_pipelines(task: Any, client: OpenAI, bare: Any) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    given: dict[str, Any] = {"image": Image.fromarray(noise)}
    files: dict[str, Any] = {"image": file_of(given["image"])}
    if task is AutoPipelineForInpainting:
        files["mask"] = mask_png(96, 64)
        left = np.zeros((64, 96), np.uint8)
        left[:, :48] = 255
        given["mask_image"] = Image.fromarray(left)
    made = client.images.edit(
        **files,
        prompt="a hat",
        response_format="url",
        extra_body={"seed": 5, "num_inference_steps": 5, "strength": 0.8},
    )
    edits = task.from_pipe(bare, torch_dtype=torch.float32)
    edits.set_progress_bar_config(disable=True)
    size = {"width": 96, "height": 64, "num_inference_steps": 5, "strength": 0.8}
    (wanted,) = expected(edits, "a hat", 5, **given, **size)
    assert made.size == "96x64"
    assert made.data is not None
    file = httpx.get(made.data[0].url or "").content
    assert is_same(pixels_of(file), wanted)


def test_the_smallest_and_the_thinnest_image(client: OpenAI) -> None:
    for width, height in ((1, 1), (200, 3)):
        made = client.images.edit(
            image=png(width, height), prompt="a hat", extra_body={"num_inference_steps": 2}
        )
        assert made.size == f"{max(16, width // 16 * 16)}x16"


def test_two_images_are_one_too_many_for_this_pipeline(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refusal:
        client.images.edit(image=[png(64, 64), png(64, 64)], prompt="a hat")
    assert refusal.value.param == "image"


def test_a_chat_is_answered_by_a_picture(images: TinyServer, client: OpenAI, bare: Any) -> None:
    made = client.chat.completions.create(
        model=images.model,
        messages=[{"role": "user", "content": "a cat"}],
        extra_body={
            "modalities": ["text", "image"],
            "size": "64x64",
            "seed": 3,
            "num_inference_steps": STEPS,
        },
    )
    (item,) = made.choices[0].message.model_dump()["images"]
    (wanted,) = expected(bare, "a cat", 3)
    assert is_same(pixels_of(item["image_url"]["url"].partition(",")[2]), wanted)


def test_a_response_is_an_image_with_its_previews(
    images: TinyServer, client: OpenAI, bare: Any
) -> None:
    tool = {"type": "image_generation", "size": "64x64", "num_inference_steps": STEPS}
    tools: Any = [{**tool, "partial_images": 1}]
    with client.responses.create(
        model=images.model,
        input="a cat",
        tools=tools,
        extra_body={"seed": 3},
        stream=True,
    ) as stream:
        events = list(stream)
    previews = [one for one in events if one.type == "response.image_generation_call.partial_image"]
    assert [pixels_of(one.partial_image_b64).shape for one in previews] == [(64, 64, 3)]
    assert events[-1].type == "response.completed"
    (item,) = events[-1].response.output
    assert item.type == "image_generation_call"
    assert item.result is not None
    (wanted,) = expected(bare, "a cat", 3)
    assert is_same(pixels_of(item.result), wanted)


async def test_a_low_quality_takes_fewer_steps(images: TinyServer, bare: Any) -> None:
    body = {"quality": "low", "num_inference_steps": None}
    answer = (await ask(images, "a cat", 3, **body)).json()
    assert answer["quality"] == "low"
    (wanted,) = expected(bare, "a cat", 3, num_inference_steps=20)  # of 50
    assert is_same(pixels_of(answer["data"][0]["b64_json"]), wanted)


async def test_the_documented_request_and_graph_work(images: TinyServer) -> None:
    text = (Path(__file__).parents[3] / "docs" / "diffusion.md").read_text()
    (body,) = re.findall(r"-d '(\{.*?\})'", text, re.DOTALL)
    asked = {**json.loads(body), "size": "64x64"}
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{images.url}/v1/images/generations", json=asked)
    assert answer.status_code == 200, answer.text
    graph, engine = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    stage = StageGraph.model_validate({"model": "a", **yaml.safe_load(graph)}).stages["dit"]
    assert set(stage.engine) < OPTIONS
    options = LoadOptions.of(yaml.safe_load(engine)["engine"])
    assert options.offload == "sequential"


def test_it_announces_images_alone(images: TinyServer) -> None:
    (model,) = httpx.get(f"{images.url}/v1/models").json()["data"]
    assert model["output_modalities"] == ["image"]


async def test_a_chat_without_modalities_is_answered_by_an_image(images: TinyServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "a cat"}],
        "size": "64x64",
        "num_inference_steps": 2,
    }
    async with httpx.AsyncClient(base_url=images.url, timeout=600) as client:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        (image,) = answer.json()["choices"][0]["message"]["images"]
        _, _, data = image["image_url"]["url"].partition(",")
        assert pixels_of(data).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("size", "param"),
    [
        ({"size": "100x100"}, "size"),
        ({"size": "64x65"}, "size"),
        ({"width": 68, "height": 64}, "width"),
    ],
)
@pytest.mark.parametrize("door", ["images/generations", "images/edits", "chat/completions"])
def test_a_size_that_the_pipeline_does_not_make_is_refused_at_every_door(
    door: str, size: dict[str, Any], param: str, images: TinyServer
) -> None:
    url = f"{images.url}/v1/{door}"
    if door == "images/edits":
        files = {"image": ("a.png", png(64, 64), "image/png")}
        answer = httpx.post(url, data={"prompt": "a cat", **size}, files=files)
    elif door == "chat/completions":
        messages = [{"role": "user", "content": "a cat"}]
        answer = httpx.post(url, json={"messages": messages, **size})
    else:
        answer = httpx.post(url, json={"prompt": "a cat", **size})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert "each side must be a multiple of 8" in error["message"]


def test_a_folder_of_a_pipeline_picks_its_graph(tiny_qwen_image: Path) -> None:
    assert pick_graph(str(tiny_qwen_image), 0).file.name == "diffusers.yaml"


async def test_a_picture_is_counted_by_its_stage_and_the_documentation_lists_the_page(
    images: TinyServer,
) -> None:
    def counts() -> Counter[str]:
        samples = [one for family in families_in(reported_page(images)) for one in family.samples]
        return Counter({one.name: int(one.value) for one in samples if "_image_" in one.name})

    before = await asyncio.to_thread(counts)
    assert (await ask(images, "a cat", 1, n=2)).status_code == 200
    wanted = {"image_steps_count": 1, "image_steps_sum": STEPS, "image_seconds_count": 1}

    def is_counted() -> bool:
        now = counts()
        return all(
            now[f"omnistage_{name}"] - before[f"omnistage_{name}"] == by
            for name, by in wanted.items()
        )

    await asyncio.to_thread(wait_until, is_counted)
    of_server = ("The gateway", "Stages", "Channels", "Processes", "Every stage", "Diffusion")
    listed = {name: kind for name, (kind, _) in documented(*of_server).items()}
    there = {
        name: kind
        for name, (kind, _) in exposed(reported_page(images)).items()
        if "omnistage_gpu_" not in name
    }
    missing = {name for name in listed if name not in there}
    assert all("_embedding_cache_" in name for name in missing)  # this stage has none
    assert there == {name: kind for name, kind in listed.items() if name not in missing}
