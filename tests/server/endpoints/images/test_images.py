"""Pictures from words over HTTP, from fake stages: bodies, events, refusals, hang-ups."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIResponseValidationError, BadRequestError, OpenAI
from support.api.openai_spec import assert_valid
from support.fakes.stages import STEPS
from support.faults.hanging_up import hang_up
from support.gateway.serving import IMAGES, RunningGateway, running_gateway
from support.media.pictures import pixels_of

URL = "/v1/images/generations"
FULL = "1024x1024"  # of the sizes that OpenAI's events list
SMALL = "64x32"


def events_of(client: httpx.Client, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names and data of a stream's events."""
    with client.stream("POST", URL, json={"stream": True, **body}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(parsed(response.iter_lines()))


def parsed(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_the_strict_sdk_takes_pictures(images_openai: OpenAI) -> None:
    made = images_openai.images.generate(prompt="a small cat", n=2, size=FULL, user="me")
    assert made.data is not None
    assert made.usage is not None
    assert [pixels_of(one.b64_json or "").max() for one in made.data] == [0, 1]
    assert (made.size, made.quality, made.output_format) == (FULL, "high", "png")
    assert made.background == "opaque"
    assert made.usage.input_tokens == 3
    assert made.usage.output_tokens == 2 * 64 * 64
    assert made.usage.total_tokens == 3 + 2 * 64 * 64
    assert_valid(made.model_dump(exclude_none=True), "ImagesResponse", "images")


def test_the_strict_sdk_takes_a_stream(images_openai: OpenAI) -> None:
    stream = images_openai.images.generate(
        prompt="cat", stream=True, partial_images=2, size=FULL, output_format="webp"
    )
    events = list(stream)
    assert [event.type for event in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    assert [getattr(event, "partial_image_index", None) for event in events] == [0, 1, None]


def test_events_are_named_and_valid(images_client: httpx.Client) -> None:
    events = events_of(images_client, {"prompt": "cat", "size": FULL, "partial_images": 3})
    components = ["ImageGenPartialImageEvent"] * 3 + ["ImageGenCompletedEvent"]
    for (name, event), component in zip(events, components, strict=True):
        assert name == event["type"]
        assert_valid(event, component, "images")
    _, last = events[-1]
    assert last["usage"]["output_tokens_details"] == {"text_tokens": 0, "image_tokens": 4096}
    assert pixels_of(last["b64_json"]).shape == (1024, 1024, 3)


def test_without_previews_there_is_only_the_picture(images_client: httpx.Client) -> None:
    body = {"prompt": "cat", "size": SMALL, "partial_images": 0}
    ((name, event),) = events_of(images_client, body)
    assert name == "image_generation.completed"
    assert event["size"] == SMALL


def test_usages_of_several_pictures_add_up(images_client: httpx.Client) -> None:
    body = {"prompt": "a cat", "size": SMALL, "n": 3}
    streamed = [event["usage"] for _, event in events_of(images_client, body)]
    whole = images_client.post(URL, json=body).json()["usage"]
    assert len(streamed) == 3
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        assert sum(usage[key] for usage in streamed) == whole[key]


def test_steps_are_told_to_those_who_ask(
    images_client: httpx.Client, images_openai: OpenAI
) -> None:
    body: dict[str, Any] = {"prompt": "cat", "size": SMALL, "stream_progress": True}
    events = events_of(images_client, body)
    progress = [event for name, event in events if name == "image_generation.progress"]
    assert [(one["stage"], one["step"], one["steps"]) for one in progress] == [
        ("dit", step, STEPS) for step in range(1, STEPS + 1)
    ]
    stream = images_openai.images.generate(
        prompt="cat", stream=True, size=FULL, extra_body={"stream_progress": True}
    )
    with pytest.raises(APIResponseValidationError):  # why it is not the default
        list(stream)


def test_a_stage_s_refusal_of_a_stream_has_its_status(images_client: httpx.Client) -> None:
    answer = images_client.post(URL, json={"prompt": "refuse", "stream": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "size"


def test_a_late_failure_is_an_event(images_client: httpx.Client) -> None:
    body = {"prompt": "fail later", "size": SMALL, "partial_images": 1}
    events = events_of(images_client, body)
    assert [name for name, _ in events] == ["image_generation.partial_image", "error"]
    assert_valid(events[-1][1], "ErrorResponse", "images")
    assert events[-1][1]["error"]["type"] == "server_error"


def test_pictures_by_url(images_client: httpx.Client, images_openai: OpenAI) -> None:
    made = images_openai.images.generate(
        prompt="cat", n=2, size=FULL, response_format="url", output_format="jpeg"
    )
    assert made.data is not None
    urls = [one.url or "" for one in made.data]
    assert len(set(urls)) == 2
    for url in urls:
        file = images_client.get(url)
        assert file.headers["content-type"] == "image/jpeg"
        assert pixels_of(file.content).shape == (1024, 1024, 3)
    missing = images_client.get("/v1/images/files/guess")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "image_not_found"


@pytest.mark.parametrize("form", ["png", "webp"])
def test_transparent_pictures_keep_their_alpha(form: str, images_client: httpx.Client) -> None:
    body = {"prompt": "cat", "background": "transparent", "output_format": form}
    answer = images_client.post(URL, json=body).json()
    assert answer["background"] == "transparent"
    assert pixels_of(answer["data"][0]["b64_json"]).shape == (32, 48, 4)


def test_compression_makes_files_smaller(images_client: httpx.Client) -> None:
    def size(compression: int) -> int:
        body = {"prompt": "cat", "output_format": "jpeg", "output_compression": compression}
        return len(images_client.post(URL, json=body).content)

    assert size(0) < size(100)


@pytest.mark.parametrize("more", [{}, {"output_format": "png"}])
def test_a_png_takes_openai_s_default_of_compression(
    more: dict[str, Any], images_client: httpx.Client
) -> None:
    answer = images_client.post(URL, json={"prompt": "cat", "output_compression": 100, **more})
    plain = images_client.post(URL, json={"prompt": "cat", **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == plain.json()["data"]


@pytest.mark.parametrize(("quality", "told"), [("low", "low"), ("hd", "high"), (None, "high")])
def test_quality_is_for_the_stage(
    quality: str | None, told: str, images: RunningGateway, images_client: httpx.Client
) -> None:
    answer = images_client.post(URL, json={"prompt": "cat", "quality": quality}).json()
    assert answer["quality"] == told
    assert images.stages.stages["dit"].last_body["quality"] == quality


def test_our_fields_reach_the_stage(images: RunningGateway, images_client: httpx.Client) -> None:
    ours = {
        "negative_prompt": "dogs",
        "num_inference_steps": 7,
        "guidance_scale": 2.5,
        "true_cfg_scale": 3,
        "width": 80,
        "height": 64,
        "lora": [{"name": "a", "scale": 0.5}],
    }
    answer = images_client.post(URL, json={"prompt": "cat", "seed": 5, "typo": 1, **ours})
    assert answer.json()["size"] == "80x64"
    assert "typo" in answer.headers["x-omnistage-warning"]
    assert "lora" not in answer.headers["x-omnistage-warning"]
    request = images.stages.stages["dit"].last_request
    assert request.seed == 5
    assert {name: request.fields[name] for name in ours} == ours


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 32_001}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 6, "n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"n": "1"}, "n"),
        ({"size": "huge"}, "size"),
        ({"size": "8x8"}, "size"),
        ({"size": "99999x64"}, "size"),
        ({"size": "64x64", "width": 64}, "size"),
        ({"quality": "best"}, "quality"),
        ({"output_format": "gif"}, "output_format"),
        ({"output_compression": 50}, "output_compression"),
        ({"output_format": "jpeg", "output_compression": 101}, "output_compression"),
        ({"output_format": "jpeg", "background": "transparent"}, "background"),
        ({"partial_images": 1}, "partial_images"),
        ({"stream": True, "partial_images": 4}, "partial_images"),
        ({"stream": True, "response_format": "url"}, "response_format"),
        ({"stream": "true"}, "stream"),
        ({"stream_progress": True}, "stream_progress"),
        ({"guidance_scale": -1}, "guidance_scale"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"seed": 1 << 70}, "seed"),
        ({"width": 15}, "width"),
    ],
)
def test_what_cannot_be_made_is_a_400(
    body: dict[str, Any], param: str, images_client: httpx.Client
) -> None:
    answer = images_client.post(URL, json={"prompt": "a cat", **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert_valid(answer.json(), "ErrorResponse", "images")


def test_another_model_is_a_404_and_one_without_pictures_a_400(
    images_client: httpx.Client, client: httpx.Client, openai: OpenAI
) -> None:
    answer = images_client.post(URL, json={"prompt": "cat", "model": "other"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(BadRequestError) as refusal:
        openai.images.generate(prompt="cat")
    assert refusal.value.code == "unsupported_model"


@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_up_frees_everything(stream: bool, images: RunningGateway) -> None:
    body = {"prompt": "hang", "size": SMALL, "stream": stream, "partial_images": int(stream)}
    dit = images.stages.stages["dit"]
    hang_up(images.url + URL, lambda: dit.tasks, json=body)
    images.wait_until_idle()
    assert dit.cancelled[-1] == dit.opened[-1].request_id


def test_a_stream_stays_alive_while_it_waits(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, IMAGES, keep_alive_s=0.05) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
        client.stream("POST", URL, json={"prompt": "hang", "stream": True}) as response,
    ):
        lines = [line for line in itertools.islice(response.iter_lines(), 4) if line]
    assert lines == [": keep-alive"] * 2
