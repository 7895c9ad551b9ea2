"""Images that control what is made, over HTTP, from fake stages."""

import base64
import json
from typing import Any

import httpx
import pytest
from support.api.openai_spec import assert_valid
from support.gateway.serving import RunningGateway
from support.media.pictures import mask_png, png

from omnistage.server.tasks.images.schema import MAX_CONTROLS
from omnistage.stages.messages.body import GivenMedium

GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"
PNG = png(48, 32, (200, 0, 0))
HUGE = png(10_000, 10_000, 0, "L")
HUGE_WARNS = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
SOUND = b"RIFF\x24\0\0\0WAVEfmt "


def place(data: bytes = PNG) -> dict[str, str]:
    return {"image_url": "data:image/png;base64," + base64.b64encode(data).decode()}


def given(gateway: RunningGateway) -> tuple[list[GivenMedium], set[str]]:
    opened = gateway.stages.stages["dit"].opened[-1]
    return opened.message.given_media, set(opened.tensors)


@pytest.mark.parametrize("count", [None, 1, 2])
def test_a_generation_brings_them_as_json(
    count: int | None, images: RunningGateway, images_client: httpx.Client
) -> None:
    control: Any = place() if count is None else [place()] * count
    numbers = {"controlnet_conditioning_scale": 0.5, "control_guidance_end": [0.5, 1]}
    body = {"prompt": "a cat", "size": "64x64", "control_image": control, **numbers}
    answer = images_client.post(GENERATIONS, json=body)
    assert answer.status_code == 200, answer.text
    assert "x-omnistage-warning" not in answer.headers
    assert answer.json()["usage"]["input_tokens_details"]["image_tokens"] == 6 * (count or 1)
    names = [f"control_image{i}" for i in range(count or 1)]
    assert given(images) == ([GivenMedium("control_image", name) for name in names], set(names))
    message = images.stages.stages["dit"].opened[-1].message
    assert message.fields.items() >= numbers.items()
    assert "control_image" not in message.fields


def test_an_edit_brings_them_as_files_beside_its_images(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    files = [("image", PNG), ("mask", mask_png(48, 32))]
    files += [("control_image[]", PNG), ("control_image[1]", png(16, 16))]
    data = {"prompt": "a hat", "size": "64x64", "controlnet_conditioning_scale": "[0.5, 1]"}
    answer = images_client.post(EDITS, data=data, files=files)
    assert answer.status_code == 200, answer.text
    media, tensors = given(images)
    assert [one.field for one in media] == ["image", "mask", "control_image", "control_image"]
    assert tensors == {"image0", "mask", "control_image0", "control_image1"}
    opened = images.stages.stages["dit"].opened[-1]
    assert opened.tensors["control_image1"].shape == (16, 16, 3)
    assert opened.message.fields["controlnet_conditioning_scale"] == [0.5, 1]


def test_a_generation_brings_them_as_files(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    files = [("control_image[]", PNG), ("control_image[]", png(16, 16))]
    numbers = {
        "controlnet_conditioning_scale": "[0.5, 1]",
        "control_guidance_start": "0.25",
        "control_guidance_end": "[1, 0.5]",
    }
    data = {"prompt": "a hat", "size": "64x64", "n": "2", "extra[max_length]": "7", **numbers}
    answer = images_client.post(GENERATIONS, data=data, files=files)
    assert answer.status_code == 200, answer.text
    assert "x-omnistage-warning" not in answer.headers
    assert len(answer.json()["data"]) == 2
    names = ["control_image0", "control_image1"]
    assert given(images) == ([GivenMedium("control_image", name) for name in names], set(names))
    opened = images.stages.stages["dit"].opened[-1]
    assert opened.tensors["control_image1"].shape == (16, 16, 3)
    fields = {name: json.loads(value) for name, value in numbers.items()}
    assert opened.message.fields.items() >= {**fields, "extra": {"max_length": 7}}.items()


def test_a_form_of_a_generation_needs_no_file(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    answer = images_client.post(GENERATIONS, files={"prompt": (None, "a hat")})
    assert answer.status_code == 200, answer.text
    assert given(images) == ([], set())


@pytest.mark.parametrize("name", ["image", "image[]", "mask"])
def test_a_generation_sends_files_to_edit_elsewhere(name: str, images_client: httpx.Client) -> None:
    answer = images_client.post(GENERATIONS, data={"prompt": "a hat"}, files=[(name, PNG)])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert "is for /v1/images/edits" in error["message"]


def test_an_edit_brings_them_as_json(images: RunningGateway, images_client: httpx.Client) -> None:
    body = {"prompt": "a hat", "images": [place()], "control_image": place(), "size": "64x64"}
    assert images_client.post(EDITS, json=body).status_code == 200
    assert given(images)[1] == {"image0", "control_image0"}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"control_image": []}, "control_image"),
    ({"control_image": [place()] * (MAX_CONTROLS + 1)}, "control_image"),
    ({"control_image": [0] * 1_000_000}, ""),
    ({"control_image": "x"}, "control_image.image_url"),
    ({"control_image": 1e308}, "control_image.image_url"),
    ({"control_image": {"file_id": "file-1"}}, "control_image.file_id"),
    ({"control_image": [place(), {"image_url": 1}]}, "control_image[1].image_url"),
    ({"control_image": place(SOUND)}, "control_image.image_url"),
    ({"control_image": place(b"%PDF-1.4")}, "control_image.image_url"),
    ({"control_image": place(HUGE)}, "control_image.image_url"),
    ({"control_image": {"image_url": "file:///etc/passwd"}}, "control_image.image_url"),
    ({"controlnet_conditioning_scale": "a"}, "controlnet_conditioning_scale"),
    ({"controlnet_conditioning_scale": 1e308}, "controlnet_conditioning_scale"),
    ({"controlnet_conditioning_scale": []}, "controlnet_conditioning_scale"),
    ({"control_guidance_start": [0.5] * 17}, "control_guidance_start"),
    ({"control_guidance_start": -1}, "control_guidance_start"),
    ({"control_guidance_end": 2}, "control_guidance_end"),
    ({"control_guidance_end": [[1]]}, "control_guidance_end"),
]


@HUGE_WARNS
@pytest.mark.parametrize(("fields", "param"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("url", [GENERATIONS, EDITS])
def test_what_is_none_is_a_400(
    url: str, fields: dict[str, Any], param: str, images_client: httpx.Client
) -> None:
    body = {"prompt": "a hat", **({"images": [place()]} if url == EDITS else {}), **fields}
    answer = images_client.post(url, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert_valid(answer.json(), "ErrorResponse", "images")
    assert not param or error["param"] == param or error["param"].startswith(param + ".")


@HUGE_WARNS
@pytest.mark.parametrize(
    ("files", "fields", "param"),
    [
        ([("control_image", b"not an image")], {}, "control_image"),
        ([("control_image[0]", SOUND)], {}, "control_image[0]"),
        ([("control_image", HUGE)], {}, "control_image"),
        ([("control_image", PNG)] * (MAX_CONTROLS + 1), {}, "control_image"),
        ([], {"control_image": "words"}, "control_image"),
        ([], {"control_guidance_start": "words"}, "control_guidance_start"),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("url", [GENERATIONS, EDITS])
def test_a_bad_form_is_a_400(
    url: str, files: Any, fields: dict[str, str], param: str, images_client: httpx.Client
) -> None:
    data = {"prompt": "a hat", **fields}
    needed: list[Any] = [("image", PNG)] if url == EDITS else [("size", (None, "64x64"))]
    answer = images_client.post(url, data=data, files=[*needed, *files])
    assert answer.status_code == 400, answer.text
    assert str(answer.json()["error"]["param"]).startswith(param)
