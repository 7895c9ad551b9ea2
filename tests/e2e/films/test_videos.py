"""A video on its whole way: HTTP, stage, file. Its frames are the bare pipeline's."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from openai import OpenAI
from support.api.prompts import data_url
from support.media.pictures import png
from support.servers.image_requests import bare_pipeline, picture_server
from support.servers.server import TinyServer
from support.servers.snapshots import reported_page
from support.waiting import wait_until

from omnistage.server.media.video.mp4 import encode
from omnistage.server.runtime.request import ImageOutput
from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.request.outputs import to_uint8

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]

FRAMES = npt.NDArray[np.uint8]
NUM_FRAMES, HEIGHT, WIDTH, SEED = 9, 48, 64, 7
BODY = {
    "prompt": "a red house by the sea",
    "height": HEIGHT,
    "width": WIDTH,
    "num_frames": NUM_FRAMES,
    "num_inference_steps": 3,
    "guidance_scale": 3.0,
    "negative_prompt": "rain",
}
# Of 255, in mean: what h264 and colours in quarter size take from noise; frames in another order
# differ by 30.
LOSS = 10.0


@pytest.fixture(scope="module")
def tiny_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines") / "wan"
    write_tiny("wan", folder)
    return folder


@pytest.fixture(scope="module")
def videos(tiny_wan: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    with picture_server("diffusers.yaml", tiny_wan, tmp_path_factory.mktemp("videos")) as server:
        yield server


@pytest.fixture(scope="module")
def bare_frames(tiny_wan: Path) -> FRAMES:
    """What the pipeline makes by itself, uint8 [n, height, width, 3]."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.inference_mode():
        made = bare_pipeline(tiny_wan)(**BODY, generator=generator).frames[0]
    return np.stack(to_uint8(made))


def file_of(frames: FRAMES, fps: float) -> bytes:
    """The file that the gateway makes of these frames."""
    return encode([ImageOutput(frame.tobytes(), WIDTH, HEIGHT) for frame in frames], fps)


def frames_of(data: bytes) -> FRAMES:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


def ask(server: TinyServer, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/videos/sync", json={**BODY, **more}, timeout=600)


def test_the_frames_of_a_file_are_those_of_the_bare_pipeline(
    videos: TinyServer, bare_frames: FRAMES
) -> None:
    answer = ask(videos, seed=SEED, fps=8)
    assert answer.status_code == 200, answer.text
    seen = frames_of(answer.content)
    assert seen.shape == bare_frames.shape == (NUM_FRAMES, HEIGHT, WIDTH, 3)
    assert np.array_equal(seen, frames_of(file_of(bare_frames, 8)))
    assert np.abs(seen.astype(int) - bare_frames).mean() < LOSS
    assert np.abs(seen.astype(int) - np.roll(bare_frames, 1, axis=0)).mean() > 2 * LOSS
    others = ask(videos, seed=SEED + 1, fps=8)
    assert not np.array_equal(frames_of(others.content), seen)


def test_a_file_has_16_frames_per_second_where_neither_client_nor_pipeline_says(
    videos: TinyServer,
) -> None:
    with av.open(io.BytesIO(ask(videos).content)) as container:
        assert container.streams.video[0].average_rate == 16


def test_it_announces_videos_alone(videos: TinyServer) -> None:
    (model,) = httpx.get(f"{videos.url}/v1/models").json()["data"]
    assert model["output_modalities"] == ["video"]
    answer = httpx.post(f"{videos.url}/v1/images/generations", json={"prompt": "a"})
    assert answer.status_code == 400
    wanted = "This model makes no images; it makes video: use /v1/videos."
    assert answer.json()["error"]["message"] == wanted


def job_of(server: TinyServer, job: dict[str, Any]) -> dict[str, Any]:
    return dict(httpx.get(f"{server.url}/v1/videos/{job['id']}").json())


def health_of(server: TinyServer) -> dict[str, Any]:
    return dict(httpx.get(f"{server.url}/health").json()["stages"]["dit"])


def ended(server: TinyServer, job: dict[str, Any]) -> dict[str, Any]:
    wait_until(lambda: job_of(server, job)["status"] in ("completed", "failed"))
    return job_of(server, job)


def num_calls(server: TinyServer) -> int:
    """How many forwards of the denoiser the stage has made, once it has no request."""
    page = reported_page(server)
    found = re.findall(r"^omnistage_denoising_batch_requests_count\S* (\S+)$", page, re.MULTILINE)
    return int(sum(map(float, found)))


def test_a_job_of_openai_s_client_is_the_bare_pipeline_s_video(
    videos: TinyServer, bare_frames: FRAMES
) -> None:
    with OpenAI(base_url=f"{videos.url}/v1", api_key="none") as openai:
        fields = {name: BODY[name] for name in BODY if name not in ("prompt", "height", "width")}
        video = openai.videos.create_and_poll(
            prompt=str(BODY["prompt"]),
            size=f"{WIDTH}x{HEIGHT}",  # type: ignore[arg-type]  # Sora's sizes alone are named
            extra_body={**fields, "seed": SEED, "fps": 8},
            poll_interval_ms=100,
        )
        assert (video.status, video.progress, video.seconds) == ("completed", 100, "1.125")
        seen = frames_of(openai.videos.download_content(video.id).read())
    assert np.array_equal(seen, frames_of(file_of(bare_frames, 8)))


def test_a_job_s_seconds_are_frames_that_wan_makes(videos: TinyServer) -> None:
    body = {**BODY, "num_frames": None, "seconds": "1"}
    job = httpx.post(f"{videos.url}/v1/videos", json=body, timeout=600).json()
    assert (job["num_frames"], job["fps"], job["size"]) == (17, 16, f"{WIDTH}x{HEIGHT}")
    assert ended(videos, job)["seconds"] == "1.062"


def test_a_deleted_job_ends_in_its_stage_within_a_step(videos: TinyServer) -> None:
    body = {**BODY, "num_inference_steps": 1000, "num_frames": 49}
    job = httpx.post(f"{videos.url}/v1/videos", json=body, timeout=600).json()
    wait_until(lambda: job_of(videos, job)["progress"] > 0)
    assert job_of(videos, job)["status"] == "in_progress"
    answer = httpx.delete(f"{videos.url}/v1/videos/{job['id']}", timeout=600)
    assert answer.status_code == 200
    wait_until(lambda: health_of(videos)["running"] == 0)
    assert not any(health_of(videos)["held"].values())
    before = num_calls(videos)
    assert before > 0
    assert num_calls(videos) == before, "no forward was made since"
    assert httpx.get(f"{videos.url}/v1/videos/{job['id']}").status_code == 404


def test_media_without_a_place_are_refused_by_their_names(videos: TinyServer) -> None:
    given = data_url("image/png", png(WIDTH, HEIGHT))
    for field in ("input_reference", "last_image", "mask"):
        answer = httpx.post(f"{videos.url}/v1/videos", json={**BODY, field: given}, timeout=600)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == field
        message = f"This model has no place for {field}; it takes video."
        assert answer.json()["error"]["message"] == message


def test_a_remix_and_an_edit_are_made_by_wan_s_pipeline_of_videos(videos: TinyServer) -> None:
    body = {name: value for name, value in BODY.items() if name != "prompt"}
    source = httpx.post(f"{videos.url}/v1/videos", json={**BODY, "fps": 8}, timeout=600).json()
    assert ended(videos, source)["status"] == "completed"
    place = f"{videos.url}/v1/videos/{source['id']}"
    remix = httpx.post(f"{place}/remix", json={"prompt": "a green boat"}, timeout=600).json()
    assert remix["remixed_from_video_id"] == source["id"]
    del body["height"], body["width"], body["num_frames"]
    edit = {"prompt": "a green boat", "video": {"id": source["id"]}, "strength": 0.6, **body}
    edited = httpx.post(f"{videos.url}/v1/videos/edits", json=edit, timeout=600).json()
    for job in (remix, edited):
        made = ended(videos, job)
        assert (made["status"], made["error"]) == ("completed", None)
        assert (made["num_frames"], made["fps"]) == (NUM_FRAMES, 8)
        assert made["size"] == f"{WIDTH}x{HEIGHT}"
    extension = {"prompt": "a boat", "video": {"id": source["id"]}, "seconds": "1"}
    answer = httpx.post(f"{videos.url}/v1/videos/extensions", json=extension, timeout=600)
    assert answer.status_code == 400
    assert "takes no first frame" in answer.json()["error"]["message"]


def test_a_size_that_is_not_made_is_a_400(videos: TinyServer) -> None:
    answer = ask(videos, height=40)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "height"
    assert "64x40 is not made by this model: each side must be a multiple of 16" in error["message"]


@pytest.mark.repeat
def test_of_fifty_jobs_a_killed_server_loses_none(tiny_wan: Path, tmp_path: Path) -> None:
    """What one server was killed amid is failed for the next, and no file is without a job."""
    kept, first, second = (tmp_path / name for name in ("kept", "first", "second"))
    for folder in (kept, first, second):
        folder.mkdir()
    options = ("--videos-dir", str(kept), "--videos-max-queue", "64")
    job = {"prompt": BODY["prompt"], "size": "64x48", "num_inference_steps": 1000}
    with picture_server("diffusers.yaml", tiny_wan, first, *options) as server:
        made = [httpx.post(f"{server.url}/v1/videos", json=job, timeout=600) for _ in range(50)]
        server.process.kill()
        server.process.wait()
        server.is_killed = True
    assert {one.status_code for one in made} == {200}
    with picture_server("diffusers.yaml", tiny_wan, second, *options) as server:
        listed = httpx.get(f"{server.url}/v1/videos", params={"limit": 100}).json()["data"]
        assert {one["id"] for one in listed} == {one.json()["id"] for one in made}
        assert {one["status"] for one in listed} == {"failed"}
        assert {one.name for one in kept.iterdir() if one.is_dir()} == {one["id"] for one in listed}
        assert ask(server).status_code == 200
