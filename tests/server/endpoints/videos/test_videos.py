"""POST /v1/videos/sync over a stage that sends frames."""

import io
from collections.abc import Iterator
from typing import Any

import av
import httpx
import numpy as np
import pytest
from support.gateway.serving import MODEL, RunningGateway, running_gateway

VIDEOS = {
    "model": MODEL,
    "stages": {"camera": {"kind": "diffusers"}},
    "edges": [],
    "outputs": {"image": "camera", "video": "camera"},
}
ASKED = {"prompt": "a cat", "width": 64, "height": 48, "num_frames": 5}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("videos"), VIDEOS) as running:
        yield running


def ask(gateway: RunningGateway, **more: Any) -> httpx.Response:
    with httpx.Client(base_url=gateway.url, timeout=600) as client:
        return client.post("/v1/videos/sync", json={**ASKED, **more})


def test_frames_become_an_mp4(videos: RunningGateway) -> None:
    answer = ask(videos, fps=8)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(answer.content)) as container:
        (stream,) = container.streams.video
        assert stream.average_rate == 8
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 5
    greys = [float(np.mean(frame)) for frame in frames]  # the stage makes each lighter by 40
    assert np.allclose(greys, [40 * index for index in range(5)], atol=4)


@pytest.mark.parametrize(
    ("prompt", "asked", "rate"), [("a cat", {}, 16), ("at 25", {}, 25), ("at 25", {"fps": 8}, 8)]
)
def test_the_file_has_the_rate_that_was_asked_for_or_that_the_pipeline_made(
    prompt: str, asked: dict[str, int], rate: int, videos: RunningGateway
) -> None:
    answer = ask(videos, prompt=prompt, **asked)
    with av.open(io.BytesIO(answer.content)) as container:
        assert container.streams.video[0].average_rate == rate
    assert videos.stages.stages["camera"].opened[-1].message.fields["fps"] == asked.get("fps")


def test_audio_after_the_frames_is_in_the_file_and_lasts_as_long(videos: RunningGateway) -> None:
    answer = ask(videos, prompt="with sound", fps=10)
    with av.open(io.BytesIO(answer.content)) as container:
        video, audio = container.streams
        assert (audio.type, audio.codec.name, audio.rate) == ("audio", "aac", 24_000)
        assert audio.layout.name == "stereo"
        assert float(audio.duration * audio.time_base) == pytest.approx(0.5)
        assert float(video.duration * video.time_base) == pytest.approx(0.5)
        samples = np.concatenate([one.to_ndarray() for one in container.decode(audio)], axis=1)
    left, right = samples[:, 480:900] * 32768  # the stage makes 960 of each
    assert np.allclose(left, 1000, atol=300)
    assert np.allclose(right, -2000, atol=300)


@pytest.mark.parametrize("asked", [{"prompt": "a cat"}, {"prompt": "with sound", "audio": False}])
def test_a_video_without_audio_has_one_stream(
    asked: dict[str, Any], videos: RunningGateway
) -> None:
    with av.open(io.BytesIO(ask(videos, **asked).content)) as container:
        assert [one.type for one in container.streams] == ["video"]


@pytest.mark.parametrize(("field", "value"), [("width", 72), ("height", 66)])
def test_a_size_that_the_pipeline_does_not_make_is_refused_before_it_begins(
    field: str, value: int, videos: RunningGateway
) -> None:
    before = len(videos.stages.stages["camera"].seen)
    answer = ask(videos, **{field: value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (field, "invalid_value")
    assert "each side must be a multiple of 16" in error["message"]
    assert len(videos.stages.stages["camera"].seen) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt", ""), ("width", 63), ("height", 8), ("num_frames", 0), ("fps", 0), ("seed", "a")],
)
def test_what_cannot_be_made_is_a_400(field: str, value: Any, videos: RunningGateway) -> None:
    answer = ask(videos, **{field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_more_than_the_stage_takes_is_refused_before_it_begins(videos: RunningGateway) -> None:
    before = len(videos.stages.stages["camera"].seen)
    answer = ask(videos, width=128, height=128, num_frames=7)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "too_much_work")
    assert error["param"] == "num_frames"
    asked = "num_frames: 7 frames of 128x128 are 0.115 megapixels at once"
    assert error["message"] == f"{asked}; this server makes at most 0.1 (its camera)."
    assert len(videos.stages.stages["camera"].seen) == before
    assert ask(videos, width=128, height=128, num_frames=6).status_code == 200


def test_the_stage_s_refusal_is_the_client_s(videos: RunningGateway) -> None:
    answer = ask(videos, prompt="refuse")
    assert answer.status_code == 400
    assert "makes no video" in answer.json()["error"]["message"]


def test_unknown_fields_are_named(videos: RunningGateway) -> None:
    answer = ask(videos, colour="red")
    assert answer.status_code == 200
    assert "colour" in answer.headers["x-omnistage-warning"]


def test_a_model_without_videos_says_so(gateway: RunningGateway) -> None:
    answer = ask(gateway)
    assert answer.status_code == 400
    assert "makes no videos; it makes audio, text" in answer.json()["error"]["message"]


def test_other_arguments_of_the_pipeline_come_in_a_form_too(videos: RunningGateway) -> None:
    form = {**{name: str(value) for name, value in ASKED.items()}, "extra[flow_shift]": "3.5"}
    with httpx.Client(base_url=videos.url, timeout=600) as client:
        files = {"extra[sigmas][]": (None, "1.0"), "extra[prompt_2]": (None, "rain")}
        answer = client.post("/v1/videos/sync", data=form, files=files)
    assert answer.status_code == 200, answer.text
    given = videos.stages.stages["camera"].opened[-1].message.fields["extra"]
    assert given == {"flow_shift": 3.5, "sigmas": [1.0], "prompt_2": "rain"}
