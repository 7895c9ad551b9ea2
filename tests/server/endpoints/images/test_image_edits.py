"""Pictures from pictures over HTTP, from fake stages: forms, JSON, masks, refusals."""

import base64
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from PIL import ExifTags, Image
from support.gateway import IMAGES, RunningGateway, running_gateway
from support.openai_spec import assert_valid
from support.pictures import file_of, mask_png, pixels_of, png

from omnistage.connectors.chunk import Chunk
from omnistage.server.endpoints.images.image_form import MAX_IMAGES
from omnistage.server.http.body_limit import MAX_BODY_BYTES
from omnistage.server.tasks.images.schema import WORDS, EditRequest
from omnistage.stages.messages.to_stage import Request

URL = "/v1/images/edits"
PNG = png(48, 32)
DATA_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def last_request(gateway: RunningGateway) -> Chunk[Request]:
    return gateway.stages.stages["dit"].opened[-1]


def post(client: httpx.Client, files: Any, **fields: str) -> httpx.Response:
    return client.post(URL, data={"prompt": "a hat", **fields}, files=files)


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


def test_fields_and_files_that_are_sent_empty_are_not_given(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    """As by a page's form whose picker of a mask was left alone."""
    optional = {name: "" for name in EditRequest.model_fields if name != "prompt"}
    nothing = b'Content-Disposition: form-data; name="mask"; filename=""\r\n\r\n\r\n'
    form = httpx.Request(
        "POST", images_client.base_url, data={"prompt": "a hat", **optional}, files={"image": PNG}
    )
    boundary = form.headers["content-type"].partition("boundary=")[2].encode()
    body = b"--" + boundary + b"\r\n" + nothing + form.read()
    kind = {"content-type": form.headers["content-type"]}
    answer = images_client.post(URL, content=body, headers=kind)
    assert answer.status_code == 200, answer.text
    assert "x-omnistage-warning" not in answer.headers
    request = last_request(images)
    assert set(request.tensors) == {"image0"}
    assert post(images_client, {"image": PNG}).status_code == 200
    assert last_request(images).message.fields == request.message.fields


def test_a_picture_without_a_filename_is_refused_as_no_file(images_client: httpx.Client) -> None:
    for name in ("image", "mask"):
        body = f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
        kind = {"content-type": "multipart/form-data; boundary=b"}
        answer = images_client.post(URL, content=body + PNG + b"\r\n--b--\r\n", headers=kind)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert 'filename="' in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("files", "fields", "param"),
    [
        ([("other", b"")], {}, "other"),
        ([("image", PNG)] * (MAX_IMAGES + 1), {}, "image"),
        ([("image", b"not a picture")], {}, "image"),
        ([("image", b"")], {}, "image"),
        ([("image", PNG[:60])], {}, "image"),
        ([("image", PNG), ("image[1]", b"%PDF-1.4")], {}, "image[1]"),
        ([("image", png(4097, 4096, 0, "L"))], {}, "image"),
        ([("image", png(4000, 2200, 0, "L"))] * 2, {}, "image"),
        ([("image", PNG), ("mask", mask_png(32, 32))], {}, "mask"),
        ([("image", PNG), ("mask", PNG)], {}, "mask"),
        ([("image", PNG), ("mask", png(48, 32, (0, 0, 0, 9), "RGBA"))], {}, "mask"),
        ([("image", PNG)] + [("mask", mask_png(48, 32))] * 2, {}, "mask"),
        ([("image", PNG), ("prompt", b"a file")], {}, "prompt"),
        ([("image", PNG)], {"prompt": ""}, "prompt"),
        ([("image", PNG)], {"prompt": "a\0b"}, "prompt"),
        ([("image", PNG)], {"mask": "words"}, "mask"),
        ([("image", PNG)], {"n": "11"}, "n"),
        ([("image", PNG)], {"n": "two"}, "n"),
        ([("image", PNG)], {"n": '"2"'}, "n"),
        ([("image", PNG)], {"size": "1x1"}, "size"),
        ([("image", PNG)], {"stream": "yes"}, "stream"),
        ([("image", PNG)], {"strength": "0"}, "strength"),
        ([("image", PNG)], {"seed": "9" * 40}, "seed"),
        ([("image", PNG)], {"guidance_scale": "NaN"}, "guidance_scale"),
        ([("image", PNG)], {"guidance_scale": "1e999"}, "guidance_scale"),
        ([("image", PNG)], {"input_fidelity": "best"}, "input_fidelity"),
    ],
)
def test_a_bad_form_is_a_400(
    files: Any, fields: dict[str, str], param: str, images_client: httpx.Client
) -> None:
    answer = post(images_client, files, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert_valid(answer.json(), "ErrorResponse", "images")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "images"),
        ([], "images"),
        (["x"], "images[0].image_url"),
        ([{"file_id": "file-1"}], "images[0].file_id"),
        ([{"image_url": "ftp://a.test/b.png"}], "images[0].image_url"),
        ([{"image_url": "file:///etc/passwd"}], "images[0].image_url"),
        ([{"image_url": "http://127.0.0.1/b.png"}], "images[0].image_url"),
        ([{"image_url": "data:image/png;base64,!!"}], "images[0].image_url"),
        ([{"image_url": "data:image/png;base64,aaaa"}], "images[0].image_url"),
    ],
)
def test_bad_json_is_a_400(given: Any, param: str, images_client: httpx.Client) -> None:
    answer = images_client.post(URL, json={"prompt": "a hat", "images": given})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        ("text/plain", b"x", 415, "unsupported_media_type"),
        ("multipart/form-data", b"x", 400, "invalid_value"),
        ("multipart/form-data; boundary=a", b"--a\r\nx", 400, "invalid_value"),
        ("multipart/form-data; boundary=a", b"--b\r\n", 400, "invalid_value"),
    ],
)
def test_a_body_that_is_no_form(
    content_type: str, body: bytes, status: int, code: str, images_client: httpx.Client
) -> None:
    answer = images_client.post(URL, content=body, headers={"content-type": content_type})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_client_that_leaves_while_it_sends(
    images: RunningGateway, images_client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = images.url.removeprefix("http://").split(":")
    head = f"POST {URL} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
    head += "Content-Type: multipart/form-data; boundary=a\r\n\r\n--a\r\n"
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(head.encode())
    assert post(images_client, {"image": PNG}).status_code == 200
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_pixels_arrive_as_they_were(images: RunningGateway, images_client: httpx.Client) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (32, 48, 3), np.uint8)
    file = file_of(Image.fromarray(pixels))
    assert post(images_client, {"image": file}).status_code == 200
    assert (last_request(images).tensors["image0"].numpy() == pixels).all()


def test_a_form_that_is_too_large_is_a_413(images_client: httpx.Client) -> None:
    answer = post(images_client, {"image": bytes(MAX_BODY_BYTES)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"extra": "[" * 10_000}, "extra"),
        ({"extra": "NaN"}, "extra"),
        ({"extra": '{"a": {"b": 1}}'}, "extra.a"),
        ({"extra": '{"a": 1e999}'}, "extra"),
        ({"extra": "{}", "extra[a]": "1", "extra[a][]": "2"}, "extra.a"),
        ({"extra[a]": "[[[[1]]]]"}, "extra.a"),
        ({"extra[a]": "null", "extra[b]": '{"c": 1}'}, "extra.b"),
    ],
)
def test_what_is_no_other_argument_in_a_form_is_a_400(
    images_client: httpx.Client, fields: dict[str, str], param: str
) -> None:
    answer = post(images_client, {"image": ("a.png", PNG)}, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
