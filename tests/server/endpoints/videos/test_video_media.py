"""The fields and media of a video's request: what the stage gets of them, and what is refused."""

import io
import json
from collections.abc import Iterator
from typing import Any

import av
import httpx
import numpy as np
import pytest
from support.api.doors import ONE_SHOT
from support.api.prompts import data_url, video_bytes
from support.gateway.serving import STUDIO, RunningGateway, running_gateway
from support.gateway.taken_drawing import TakenDrawing
from support.media.pictures import mask_png, png
from support.media.sounds import tone, wav_of

URL = "/v1/videos/sync"
FRAMES, SIDE = 5, 32


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("studio"), STUDIO, arena_mb=16) as running:
        yield running


@pytest.fixture(scope="module")
def client(studio: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=studio.url, timeout=600, limits=ONE_SHOT) as connected:
        yield connected


def file(data: bytes) -> tuple[str, bytes]:
    return ("upload", data)


def rate_of(answer: httpx.Response) -> tuple[int, float]:
    assert answer.status_code == 200, answer.text
    with av.open(io.BytesIO(answer.content)) as container:
        (stream,) = container.streams.video
        return stream.frames, float(stream.average_rate)


@pytest.mark.parametrize(
    ("body", "frames", "fps"),
    [
        ({}, 9, 8),
        ({"seconds": "4"}, 33, 8),
        ({"seconds": 1.2}, 9, 8),
        ({"seconds": "2", "fps": 16}, 33, 16),
        ({"num_frames": 5, "fps": 10}, 5, 10),
    ],
)
def test_seconds_are_frames_that_the_pipeline_makes(
    body: dict[str, Any], frames: int, fps: int, client: httpx.Client, studio: RunningGateway
) -> None:
    assert rate_of(client.post(URL, json={"prompt": "a cat", **body})) == (frames, fps)
    assert TakenDrawing(studio.stages.stages["studio"]).fields["fps"] == body.get("fps")
    assert "seconds" not in TakenDrawing(studio.stages.stages["studio"]).fields


def test_a_form_has_the_same_fields_as_json(client: httpx.Client, studio: RunningGateway) -> None:
    body = {
        "prompt": "12",
        "size": "32x48",
        "seconds": "1",
        "num_inference_steps": 3,
        "guidance_scale": 2.5,
        "true_cfg_scale": 4.0,
        "strength": 0.5,
        "step_cache": False,
        "lora": [{"name": "style", "scale": 0.5}],
        "extra": {"max_sequence_length": 64, "sigmas": [1.0, 0.5]},
        "audio": False,
    }
    assert client.post(URL, json=body).status_code == 200
    by_json = TakenDrawing(studio.stages.stages["studio"]).fields
    words = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()
    }
    answer = client.post(URL, files={name: (None, text) for name, text in words.items()})
    assert answer.status_code == 200, answer.text
    assert TakenDrawing(studio.stages.stages["studio"]).fields == by_json
    assert "x-omnistage-warning" not in answer.headers
    assert (by_json["width"], by_json["height"], by_json["num_frames"]) == (32, 48, 9)
    for name in ("strength", "true_cfg_scale", "step_cache", "lora", "extra", "audio"):
        assert by_json[name] == body[name]


def test_each_medium_reaches_the_stage_by_the_name_of_what_it_is_for(
    client: httpx.Client, studio: RunningGateway
) -> None:
    video, sound = video_bytes(FRAMES, SIDE), wav_of(tone(0.5))
    files = [
        ("input_reference", file(png(16, 24))),
        ("last_image", file(png(8, 8))),
        ("reference_image[]", file(png(20, 10))),
        ("reference_image[]", file(png(10, 20))),
        ("video", file(video)),
        ("control_video", file(video)),
        ("face_video", file(video)),
        ("mask", file(mask_png(SIDE, SIDE))),
        ("audio", file(sound)),
    ]
    answer = client.post(URL, data={"prompt": "a cat"}, files=files)
    assert answer.status_code == 200, answer.text
    taken = TakenDrawing(studio.stages.stages["studio"])
    wanted: list[tuple[str, tuple[int, ...], type[np.generic]]] = [
        ("image", (24, 16, 3), np.uint8),
        ("last_image", (8, 8, 3), np.uint8),
        ("reference_image", (10, 20, 3), np.uint8),
        ("reference_image", (20, 10, 3), np.uint8),
        ("video", (FRAMES, SIDE, SIDE, 3), np.uint8),
        ("control_video", (FRAMES, SIDE, SIDE, 3), np.uint8),
        ("face_video", (FRAMES, SIDE, SIDE, 3), np.uint8),
        ("mask", (SIDE, SIDE), np.uint8),
        ("audio", (1, 12_000), np.float32),
    ]
    got = [
        (one.field, taken.array(i).shape, taken.array(i).dtype) for i, one in enumerate(taken.media)
    ]
    assert got == [(field, shape, np.dtype(kind)) for field, shape, kind in wanted]
    rates = {one.field: one.rate for one in taken.media}
    assert (rates["image"], rates["audio"]) == (0, 24_000)
    assert rates["video"] > 0


@pytest.mark.parametrize(
    "place",
    [
        lambda url: url,
        lambda url: {"image_url": url},
        lambda url: {"image_url": {"url": url}},
    ],
)
def test_a_reference_is_a_data_url_or_an_object_with_one(
    place: Any, client: httpx.Client, studio: RunningGateway
) -> None:
    reference = place(data_url("image/png", png(16, 24)))
    answer = client.post(URL, json={"prompt": "a cat", "input_reference": reference})
    assert answer.status_code == 200, answer.text
    assert TakenDrawing(studio.stages.stages["studio"]).media[0].field == "image"
    assert TakenDrawing(studio.stages.stages["studio"]).array(0).shape == (24, 16, 3)
    form = {"prompt": "a cat", "input_reference": json.dumps(reference)}
    form |= {"input_reference": reference} if isinstance(reference, str) else {}
    assert client.post(URL, files={n: (None, v) for n, v in form.items()}).status_code == 200
    assert TakenDrawing(studio.stages.stages["studio"]).array(0).shape == (24, 16, 3)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"seconds": "4", "num_frames": 5}, "seconds"),
        ({"seconds": "1e308"}, "seconds"),
        ({"seconds": "nan"}, "seconds"),
        ({"seconds": "3600"}, "seconds"),
        ({"seconds": "four"}, "seconds"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": [1] * 1000}, "seconds"),
        ({"size": "33x32"}, "size"),
        ({"size": "64"}, "size"),
        ({"size": "64x48", "width": 64}, "size"),
        ({"size": "8192x8192"}, "size"),
        ({"strength": 1e308}, "strength"),
        ({"guidance_scale": 1e308}, "guidance_scale"),
        ({"fps": 1e308}, "fps"),
        ({"extra": [1]}, "extra"),
        ({"extra": {str(index): index for index in range(100)}}, "extra"),
        ({"lora": "a"}, "lora"),
        ({"input_reference": {"file_id": "file-1"}}, "input_reference.file_id"),
        ({"input_reference": {"url": "a"}}, "input_reference"),
        ({"input_reference": 5}, "input_reference.image_url"),
        ({"input_reference": "ftp://a/b"}, "input_reference.image_url"),
        ({"input_reference": []}, "input_reference"),
        ({"input_reference": "http://127.0.0.1:9/a.png"}, "input_reference.image_url"),
        ({"video": {"video_url": "file:///etc/passwd"}}, "video.video_url"),
        ({"audio": {"audio_url": "http://[::1]/a.wav"}}, "audio.audio_url"),
        ({"audio": 5}, "audio.audio_url"),
        ({"extra": {"a": [1] * 1_000_000}}, "extra.a"),
        ({"extra": {"__class__": {"b": 1}}}, "extra.__class__"),
        ({"input_reference": ["a", "b"]}, "input_reference[0].image_url"),
        ({"input_reference": ["a"] * 17}, "input_reference"),
        ({"audio_reference": ["a"] * 17}, "audio_reference"),
        ({"audio_reference": 5}, "audio_reference.audio_url"),
        ({"reference_image": ["a"] * 17}, "reference_image"),
        ({"reference_image": ["a"] * 1_000_000}, "reference_image"),
        ({"mask": data_url("image/png", mask_png(8, 8))}, "mask.image_url"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_a_400_that_names_its_field(
    body: dict[str, Any], param: str, client: httpx.Client, studio: RunningGateway
) -> None:
    before = len(studio.stages.stages["studio"].seen)
    answer = client.post(URL, json={"prompt": "a cat", **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(studio.stages.stages["studio"].seen) == before


WRONG = {
    "an image": png(16, 16),
    "a video": video_bytes(FRAMES, SIDE),
    "a sound": wav_of(tone(0.2)),
    "noise": bytes(range(256)) * 20,
    "nothing much": b"\0",
    "half a video": video_bytes(FRAMES, SIDE)[:400],
    "half an image": png(64, 64)[:60],
    "100 megapixels": png(10_000, 10_000),
}
TAKEN = {"image": {"an image"}, "mask": set(), "video": {"a video"}, "audio": {"a sound"}}


@pytest.mark.filterwarnings(
    "ignore::PIL.Image.DecompressionBombWarning"
)  # of Pillow alone: we refuse it
@pytest.mark.parametrize("name", sorted(WRONG))
@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("input_reference", "image"),
        ("last_image", "image"),
        ("reference_image", "image"),
        ("video", "video"),
        ("control_video", "video"),
        ("face_video", "video"),
        ("audio", "audio"),
        ("audio_reference", "audio"),
        ("mask", "mask"),
    ],
)
def test_a_medium_of_another_kind_is_a_400_that_names_it(
    field: str, kind: str, name: str, client: httpx.Client
) -> None:
    files = [(field, file(WRONG[name]))]
    if kind == "mask":
        files.append(("input_reference", file(png(16, 16))))
    answer = client.post(URL, data={"prompt": "a cat"}, files=files)
    if name in TAKEN[kind]:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


def test_a_video_of_an_hour_is_refused_before_it_is_decoded(client: httpx.Client) -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuvj420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        for index in range(3600):
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    answer = client.post(URL, data={"prompt": "a cat"}, files={"video": file(buffer.getvalue())})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "video"
    assert "3600 frames of 16 x 16; at most 1024 frames" in error["message"]
