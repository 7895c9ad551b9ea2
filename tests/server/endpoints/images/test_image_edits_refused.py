"""Forms and bodies of edits that are refused, or do not come to their end."""

import socket
from typing import Any

import httpx
import pytest
from support.api.openai_spec import assert_valid
from support.gateway.image_forms import PNG, URL, last_request, post
from support.gateway.serving import RunningGateway
from support.media.pictures import mask_png, png

from omnistage.server.endpoints.images.image_form import MAX_IMAGES
from omnistage.server.http.body_limit import MAX_BODY_BYTES
from omnistage.server.tasks.images.schema import EditRequest


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


def test_a_form_that_is_too_large_is_a_413(images_client: httpx.Client) -> None:
    answer = post(images_client, {"image": bytes(MAX_BODY_BYTES)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


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
