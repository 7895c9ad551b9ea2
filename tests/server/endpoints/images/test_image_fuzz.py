"""Mutated bodies for pictures: an answer or a refusal, never a failure of ours."""

import copy
import json
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st
from support.gateway.serving import MODEL
from support.hostile.fuzz import assert_answered, damaged, fuzzed, odd_values
from support.media.pictures import mask_png, png

from omnistage.server.tasks.images.schema import EditRequest, ImageRequest

BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "a cat",
    "n": 2,
    "size": "32x32",
    "quality": "low",
    "output_format": "jpeg",
    "output_compression": 50,
    "seed": 3,
}
STREAM = {"prompt": "a cat", "width": 32, "height": 32, "stream": True, "partial_images": 1}
FIELDS = {name: json.dumps(value).strip('"') for name, value in BODY.items()}
FILES = [("image", png(16, 16)), ("image[]", png(8, 24)), ("mask", mask_png(16, 16))]

texts = st.one_of(
    st.sampled_from(
        ["", "\0", "\ud800", "NaN", "1e999", "64x64", "0x0", "auto", "true", "[[", "9" * 99]
    ),
    st.text(max_size=8),
)
odd = odd_values(texts)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    body = copy.deepcopy(draw(st.sampled_from([BODY, STREAM])))
    for _ in range(draw(st.integers(1, 3))):
        body[draw(st.sampled_from(sorted(ImageRequest.model_fields)) | texts)] = draw(odd)
    return json.dumps(body).encode()


@st.composite
def forms(draw: st.DrawFn) -> bytes:
    """A form with fields changed, files broken, then perhaps bytes changed anywhere."""
    fields: dict[str, str] = dict(FIELDS)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(EditRequest.model_fields)) | st.text(max_size=5))
        fields[name] = draw(texts | odd.map(json.dumps))
    files = FILES[:1] * draw(st.sampled_from([0, 1, 1, 1])) + draw(
        st.lists(st.sampled_from(FILES), max_size=2)
    )
    body = b""
    for name, text in fields.items():
        body += part(name, "", text.encode(errors="replace"))
    for name, file in files:
        cut = draw(st.sampled_from([len(file)] * 6 + [len(file) // 2, 0]))
        body += part(name, '; filename="a"', file[:cut])
    body += b"--limit--\r\n"
    return damaged(draw, body, one_in=4)


def part(name: str, more: str, data: bytes) -> bytes:
    quoted = (
        name.encode(errors="replace").replace(b'"', b"%22").replace(b"\r", b"").replace(b"\n", b"")
    )
    head = b'--limit\r\nContent-Disposition: form-data; name="' + quoted + b'"' + more.encode()
    return head + b"\r\n\r\n" + data + b"\r\n"


@fuzzed()
@given(data=bodies())
def test_no_body_makes_a_generation_fail(data: bytes, images_client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    response = images_client.post("/v1/images/generations", content=data, headers=headers)
    assert_answered(response, data)


@fuzzed()
@given(data=forms())
def test_no_form_makes_an_edit_fail(data: bytes, images_client: httpx.Client) -> None:
    headers = {"content-type": "multipart/form-data; boundary=limit"}
    response = images_client.post("/v1/images/edits", content=data, headers=headers)
    assert_answered(response, data)
