"""Mutated bodies for videos: an answer or a refusal, never a failure of ours."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api.doors import ONE_SHOT
from support.api.prompts import data_url, video_bytes
from support.gateway.serving import MODEL, making_videos, running_gateway
from support.hostile.fuzz import assert_answered, damaged, fuzzed, odd_values
from support.media.pictures import mask_png, png
from support.media.sounds import tone, wav_of

from omnistage.server.options.bounds import VideoBounds
from omnistage.server.tasks.videos.media import FIELDS
from omnistage.server.tasks.videos.schema import VideoRequest

IMAGE, VIDEO, SOUND = png(16, 16), video_bytes(3, 16), wav_of(tone(0.05))
BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "a cat",
    "size": "32x32",
    "num_frames": 3,
    "fps": 8,
    "seed": 3,
}
WITH_MEDIA = {
    "prompt": "a cat",
    "seconds": "1",
    "input_reference": {"image_url": data_url("image/png", IMAGE)},
    "video": data_url("video/mp4", VIDEO),
    "mask": data_url("image/png", mask_png(16, 16)),
}
NAMES = sorted({*VideoRequest.model_fields, *FIELDS, "id"})
FILES = [
    ("input_reference", IMAGE),
    ("video", VIDEO),
    ("mask", mask_png(16, 16)),
    ("audio", SOUND),
    ("reference_image[]", IMAGE),
    ("prompt", IMAGE),
]
PATHS = ("", "/sync", "/edits", "/extensions", "/video_1/remix")

texts = st.one_of(
    st.sampled_from(
        [
            "",
            "\0",
            "\ud800",
            "NaN",
            "1e999",
            "1e308",
            "64x64",
            "0x0",
            "auto",
            "true",
            "[[",
            "9" * 99,
        ]
    ),
    st.sampled_from(['{"id": "video_1"}', '{"image_url": "data:,"}', "data:;base64,AAAA"]),
    st.text(max_size=8),
)
odd = odd_values(texts)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("fuzz")
    graph, bounds = making_videos("restyler"), VideoBounds(max_queue=20)
    with (
        running_gateway(folder, graph, arena_mb=16, videos=bounds) as running,
        httpx.Client(base_url=running.url, timeout=600, limits=ONE_SHOT) as connected,
    ):
        yield connected
        assert connected.get("/ready").status_code == 200


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    body = copy.deepcopy(draw(st.sampled_from([BODY, WITH_MEDIA])))
    for _ in range(draw(st.integers(1, 3))):
        body[draw(st.sampled_from(NAMES) | texts)] = draw(odd)
    return json.dumps(body).encode()


@st.composite
def forms(draw: st.DrawFn) -> bytes:
    """A form with fields changed, files broken, then perhaps bytes changed anywhere."""
    fields = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in BODY.items()
    }
    for _ in range(draw(st.integers(0, 3))):
        fields[draw(st.sampled_from(NAMES) | st.text(max_size=5))] = draw(
            texts | odd.map(json.dumps)
        )
    body = b"".join(part(name, "", text.encode(errors="replace")) for name, text in fields.items())
    for name, file in draw(st.lists(st.sampled_from(FILES), max_size=3)):
        cut = draw(st.sampled_from([len(file)] * 6 + [len(file) // 2, 0]))
        body += part(name, '; filename="a"', file[:cut])
    return damaged(draw, body + b"--limit--\r\n", one_in=4)


def part(name: str, more: str, data: bytes) -> bytes:
    quoted = (
        name.encode(errors="replace").replace(b'"', b"%22").replace(b"\r", b"").replace(b"\n", b"")
    )
    head = b'--limit\r\nContent-Disposition: form-data; name="' + quoted + b'"' + more.encode()
    return head + b"\r\n\r\n" + data + b"\r\n"


def check(response: httpx.Response, sent: Any) -> None:
    """A job or a page of jobs, a video, a full queue, or a refusal."""
    if response.status_code == 429:
        assert response.json()["error"]["code"] == "video_queue_full"
    elif response.status_code == 200:
        if response.headers["content-type"] == "application/json":
            assert response.json()["object"] in ("video", "list")
    else:
        assert_answered(response, sent)


@fuzzed()
@given(data=bodies(), path=st.sampled_from(PATHS))
def test_no_body_makes_a_video_fail(data: bytes, path: str, client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    check(client.post(f"/v1/videos{path}", content=data, headers=headers), data)


@fuzzed()
@given(data=forms(), path=st.sampled_from(PATHS))
def test_no_form_makes_a_video_fail(data: bytes, path: str, client: httpx.Client) -> None:
    headers = {"content-type": "multipart/form-data; boundary=limit"}
    check(client.post(f"/v1/videos{path}", content=data, headers=headers), data)


@fuzzed()
@given(query=st.dictionaries(st.sampled_from(["limit", "after", "order", "variant"]), texts))
def test_no_query_makes_a_list_fail(query: dict[str, str], client: httpx.Client) -> None:
    given = {name: value.encode(errors="replace").decode() for name, value in query.items()}
    for path in ("", "/video_1", "/video_1/content"):
        check(client.get(f"/v1/videos{path}", params=given), b"")
