"""Edits of images: what the strict SDK, forms and JSON with data URLs send."""

import base64
import json
from pathlib import Path

import httpx
import numpy as np
from openai import OpenAI
from PIL import ExifTags, Image
from support.api.openai_spec import assert_valid
from support.gateway.image_forms import PNG, URL, last_request, post
from support.gateway.serving import IMAGES, RunningGateway, running_gateway
from support.media.pictures import file_of, mask_png, pixels_of, png

from omnistage.server.tasks.images.schema import WORDS, EditRequest

DATA_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def test_the_strict_sdk_edits_one_picture(
    images: RunningGateway, images_openai: OpenAI, images_client: httpx.Client
) -> None:
    made = images_openai.images.edit(
        image=("cat.png", png(64, 32, (200, 0, 0))),
        prompt="a hat",
        n=2,
        size="1024x1024",
        input_fidelity="high",
        extra_body={"num_inference_steps": 3, "guidance_scale": 1.5, "seed": -4},
    )
    assert made.data is not None
    assert made.usage is not None
    assert pixels_of(made.data[1].b64_json or "").shape == (1024, 1024, 3)
    assert made.usage.input_tokens_details.text_tokens == 2
    assert made.usage.input_tokens_details.image_tokens == 4 * 2
    assert_valid(made.model_dump(exclude_none=True), "ImagesResponse", "images")
    request = last_request(images)
    assert request.message.seed == -4
    assert request.message.fields["num_inference_steps"] == 3
    assert request.message.fields["guidance_scale"] == 1.5
    pixels = request.tensors["image0"].numpy()
    assert pixels.shape == (32, 64, 3)
    assert pixels[0, 0].tolist() == [200, 0, 0]


def test_the_strict_sdk_streams_an_edit_of_several_with_a_mask(
    images: RunningGateway, images_openai: OpenAI
) -> None:
    stream = images_openai.images.edit(
        image=[png(64, 32), png(16, 16)],
        mask=mask_png(64, 32),
        prompt="a hat",
        stream=True,
        partial_images=1,
        size="1024x1024",
    )
    events = [event.model_dump() for event in stream]
    assert [event["type"] for event in events] == [
        "image_edit.partial_image",
        "image_edit.completed",
    ]
    assert_valid(events[0], "ImageEditPartialImageEvent", "images")
    assert_valid(events[1], "ImageEditCompletedEvent", "images")
    tensors = last_request(images).tensors
    assert tensors["image1"].shape == (16, 16, 3)
    mask = tensors["mask"].numpy()
    assert mask[:, :32].min() == 255
    assert mask[:, 32:].max() == 0


def test_a_form_has_its_numbers_as_words(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    """What Open WebUI sends, and what Python's requests makes of a boolean."""
    fields = {"n": "2", "size": "64x64", "response_format": "b64_json", "stream": "False"}
    answer = post(images_client, {"image[]": PNG}, **fields, lora='{"name": "a"}', typo="1")
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 2
    assert "typo" in answer.headers["x-omnistage-warning"]
    assert last_request(images).message.fields["lora"] == [{"name": "a"}]


def test_every_field_is_words_or_what_json_says() -> None:
    for name, field in EditRequest.model_json_schema()["properties"].items():
        assert ('"string"' in json.dumps(field)) == (name in WORDS), name


def test_what_a_file_is_counts_not_its_name(images_client: httpx.Client) -> None:
    for form in ("JPEG", "WEBP", "GIF"):
        file = file_of(Image.new("RGB", (48, 32)), form)
        given = {"image": ("upload", file, "application/octet-stream")}
        assert post(images_client, given).status_code == 200


def test_alpha_is_put_on_white_and_a_turned_photo_is_turned(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    clear = png(48, 32, (0, 0, 0, 0), "RGBA")
    turned = Image.new("RGB", (48, 32))
    turned.getexif()[ExifTags.Base.Orientation] = 6  # by 90 degrees
    files = [("image[]", clear), ("image[]", file_of(turned, exif=turned.getexif()))]
    assert post(images_client, files).status_code == 200
    tensors = last_request(images).tensors
    assert tensors["image0"].numpy().min() == 255
    assert tensors["image1"].shape == (48, 32, 3)


def test_json_with_data_urls(images: RunningGateway, images_client: httpx.Client) -> None:
    body = {"prompt": "a hat", "images": [{"image_url": DATA_URL}], "size": "64x64", "n": 1}
    answer = images_client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    assert last_request(images).tensors["image0"].shape == (32, 48, 3)


def test_pictures_that_lie_beside_the_server(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "mask.png").write_bytes(mask_png(48, 32))
    picture, mask = ({"image_url": f"file://{tmp_path}/{name}.png"} for name in ("a", "mask"))
    part = {"type": "image_url", "image_url": {"url": picture["image_url"]}}
    content = [{"type": "text", "text": "a hat"}, part]
    chat = {"messages": [{"role": "user", "content": content}], "size": "64x64"}
    edit = {"prompt": "a hat", "images": [picture], "mask": mask, "size": "64x64"}
    with (
        running_gateway(tmp_path, IMAGES, arena_mb=16, media_path=tmp_path) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        for url, body, names in (
            (URL, edit, {"image0", "mask"}),
            ("/v1/chat/completions", chat, {"image0"}),
        ):
            answer = client.post(url, json=body)
            assert answer.status_code == 200, answer.text
            assert set(last_request(gateway).tensors) == names


def test_pixels_arrive_as_they_were(images: RunningGateway, images_client: httpx.Client) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (32, 48, 3), np.uint8)
    file = file_of(Image.fromarray(pixels))
    assert post(images_client, {"image": file}).status_code == 200
    assert (last_request(images).tensors["image0"].numpy() == pixels).all()


EXTRA = {"max_sequence_length": 64, "prompt_2": "rain", "sigmas": [1.0, 0.5], "clean": True}


def test_other_arguments_of_the_pipeline_come_by_the_sdk_and_as_json_in_a_form(
    images: RunningGateway, images_openai: OpenAI, images_client: httpx.Client
) -> None:
    """The SDK writes an object in a form as `extra[NAME]`, and lists in it as `extra[NAME][]`."""
    images_openai.images.edit(image=("cat.png", PNG), prompt="a hat", extra_body={"extra": EXTRA})
    assert last_request(images).message.fields["extra"] == EXTRA
    images_openai.images.generate(prompt="a hat", extra_body={"extra": EXTRA})
    assert last_request(images).message.fields["extra"] == EXTRA
    post(images_client, {"image": ("a.png", PNG)}, extra=json.dumps(EXTRA)).raise_for_status()
    assert last_request(images).message.fields["extra"] == EXTRA
