"""Remixes, edits and extensions of videos, by pipelines that take a video or do not."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
from openai import OpenAI
from support.api.doors import ONE_SHOT
from support.api.openai_spec import assert_valid
from support.api.prompts import data_url, video_bytes
from support.fakes.stages import FakeStage
from support.gateway.serving import RunningGateway, making_videos, running_gateway
from support.media.pictures import png
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

URL = "/v1/videos"
NUM_FRAMES, FPS = 9, 8


class Server:
    """A server of one fake stage, and a client of it."""

    def __init__(self, gateway: RunningGateway, client: httpx.Client, stage: str) -> None:
        self.url = gateway.url
        self.client = client
        self._stage: FakeStage = gateway.stages.stages[stage]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(f"{URL}{path}", json={"prompt": "a dog", **body})

    def done(self, answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        place = f"{URL}/{answer.json()['id']}"
        wait_until(lambda: self.client.get(place).json()["status"] in ("completed", "failed"))
        job = dict(self.client.get(place).json())
        assert job["status"] == "completed", job
        return job

    def made(self, **body: Any) -> dict[str, Any]:
        return self.done(self.post("", **body))

    def frames(self, job: dict[str, Any]) -> list[float]:
        """The mean greys of a video's frames."""
        data = self.client.get(f"{URL}/{job['id']}/content").content
        with av.open(io.BytesIO(data)) as container:
            return [
                float(one.to_ndarray(format="rgb24").mean()) for one in container.decode(video=0)
            ]

    @property
    def fields(self) -> dict[str, Any]:
        return self._stage.opened[-1].message.fields

    @property
    def media(self) -> list[tuple[str, float]]:
        return [(one.field, one.rate) for one in self._stage.opened[-1].message.given_media]

    @property
    def image(self) -> npt.NDArray[Any]:
        chunk = self._stage.opened[-1]
        return chunk.tensors[chunk.message.given_media[0].tensor].numpy()


def serving(stage: str, folder: Path) -> Iterator[Server]:
    with (
        running_gateway(folder, making_videos(stage), arena_mb=16) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        yield Server(gateway, client, stage)


@pytest.fixture(scope="module")
def restyler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving("restyler", tmp_path_factory.mktemp("restyler"))


@pytest.fixture(scope="module")
def narrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving("narrator", tmp_path_factory.mktemp("narrator"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving("writer", tmp_path_factory.mktemp("writer"))


def test_a_remix_is_the_video_by_another_prompt(restyler: Server) -> None:
    source = restyler.made(num_inference_steps=3, guidance_scale=2.0, seed=5, size="64x48")
    with OpenAI(
        base_url=f"{restyler.url}/v1", api_key="none", default_headers={"Connection": "close"}
    ) as openai:
        remix = openai.videos.remix(source["id"], prompt="a wolf")
        assert (remix.prompt, remix.remixed_from_video_id) == ("a wolf", source["id"])
        job = openai.videos.poll(remix.id, poll_interval_ms=50)
        assert job.status == "completed"
    assert restyler.media == [("video", FPS)]
    sent = restyler.fields
    assert (sent["prompt"], sent["num_inference_steps"], sent["guidance_scale"]) == ("a wolf", 3, 2)
    assert (sent["num_frames"], sent["fps"], sent["width"]) == (NUM_FRAMES, FPS, None)


def test_an_edit_takes_a_kept_video_a_file_or_a_url(restyler: Server) -> None:
    source = restyler.made()
    kept = restyler.post("/edits", video={"id": source["id"]}, strength=0.5)
    job = restyler.done(kept)
    assert_valid({**job, "size": "1280x720"}, "VideoResource", "videos")
    assert job["remixed_from_video_id"] == source["id"]
    assert restyler.media == [("video", FPS)]
    assert restyler.fields["strength"] == 0.5
    given = video_bytes(7, 64)
    restyler.done(restyler.post("/edits", video=data_url("video/mp4", given)))
    assert (restyler.fields["num_frames"], restyler.fields["fps"]) == (7, 4)
    form = {"video": ("video.mp4", given), "mask": ("mask.png", png(64, 64, (0, 0, 0, 0), "RGBA"))}
    answer = restyler.client.post(f"{URL}/edits", data={"prompt": "a dog"}, files=form)
    job = restyler.done(answer)
    assert job["remixed_from_video_id"] is None
    assert {field for field, _ in restyler.media} == {"video", "mask"}
    assert (job["num_frames"], job["fps"], job["seconds"]) == (7, 4, "1.75")


def test_openai_s_client_edits_and_extends_a_file(restyler: Server, tmp_path: Path) -> None:
    """It sends no id of a kept video: its own check refuses an object."""
    (tmp_path / "given.mp4").write_bytes(video_bytes(5, 64))
    with OpenAI(
        base_url=f"{restyler.url}/v1", api_key="none", default_headers={"Connection": "close"}
    ) as openai:
        edited = openai.videos.edit(prompt="a wolf", video=tmp_path / "given.mp4")
        assert openai.videos.poll(edited.id, poll_interval_ms=50).status == "completed"
        assert restyler.media == [("video", 4)]
        extended = openai.videos.extend(prompt="a wolf", video=tmp_path / "given.mp4", seconds="4")
        done = openai.videos.poll(extended.id, poll_interval_ms=50)
    assert (done.status, done.seconds) == ("completed", "5.25"), "5 frames and 16 more, 4 a second"


def test_a_form_names_a_kept_video_too(restyler: Server) -> None:
    source = restyler.made()
    for video in ({"video[id]": source["id"]}, {"video": f'{{"id": "{source["id"]}"}}'}):
        fields = {"prompt": "a dog", **video}
        answer = restyler.client.post(
            f"{URL}/edits", files={name: (None, text) for name, text in fields.items()}
        )
        assert restyler.done(answer)["remixed_from_video_id"] == source["id"]


def test_an_extension_goes_on_from_the_last_frame(restyler: Server) -> None:
    source = restyler.made(size="64x48")
    answer = restyler.post("/extensions", video={"id": source["id"]}, seconds="1")
    assert (answer.json()["num_frames"], answer.json()["seconds"]) == (17, "2.125")
    job = restyler.done(answer)
    assert [field for field, _ in restyler.media] == ["image"]
    assert abs(restyler.image.mean() - 40 * (NUM_FRAMES - 1) % 256) < 4
    sent = restyler.fields
    assert (sent["width"], sent["height"], sent["num_frames"], sent["fps"]) == (64, 48, 9, FPS)
    greys = [40.0 * index % 256 for index in range(NUM_FRAMES)]
    assert np.allclose(restyler.frames(job), [*greys, *greys[1:]], atol=8)
    assert (job["num_frames"], job["seconds"]) == (17, "2.125")
    assert job["remixed_from_video_id"] == source["id"]


def test_an_extension_of_a_pipeline_that_goes_on_is_what_it_makes(narrator: Server) -> None:
    source = narrator.made(size="64x48")
    job = narrator.done(narrator.post("/extensions", video={"id": source["id"]}, seconds="1"))
    assert narrator.media == [("video", FPS)]
    assert narrator.fields["num_frames"] == 17
    assert (job["num_frames"], job["seconds"]) == (17, "2.125")


def test_a_model_of_words_alone_says_that_it_takes_no_video(writer: Server) -> None:
    source = writer.made()
    video = {"id": source["id"]}
    refused = [
        writer.post(f"/{source['id']}/remix"),
        writer.post("/edits", video=video),
        writer.post("/edits", video=data_url("video/mp4", video_bytes(5, 32))),
        writer.post("/extensions", video=video, seconds="4"),
        writer.post("", input_reference=data_url("image/png", png(8, 8))),
        writer.client.post(
            f"{URL}/sync", json={"prompt": "a", "last_image": data_url("image/png", png(8, 8))}
        ),
    ]
    for answer in refused:
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == "unsupported_model"
        assert error["param"] in ("video", "input_reference", "last_image")
        assert "This model" in error["message"]
    assert len(writer.client.get(URL).json()["data"]) == 1


def test_a_narrator_takes_no_first_frame(narrator: Server) -> None:
    answer = narrator.post("", input_reference=data_url("image/png", png(8, 8)))
    assert answer.status_code == 400
    message = "This model has no place for input_reference; it takes video."
    assert answer.json()["error"]["message"] == message


def test_a_model_refuses_no_first_frame_and_several_at_once(tmp_path: Path) -> None:
    for animator in serving("animator", tmp_path):
        for path in ("", "/sync"):
            answer = animator.post(path)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == "input_reference"
            message = "input_reference is missing: this model makes nothing without it."
            assert error["message"] == message
            answer = animator.post(path, input_reference=[data_url("image/png", png(8, 8))] * 2)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["param"], error["code"]) == ("input_reference", "invalid_value")
            message = "This model takes at most 1 of input_reference; there are 2."
            assert error["message"] == message
        job = animator.made(input_reference=data_url("image/png", png(64, 48)))
        extension = animator.post("/extensions", video={"id": job["id"]}, seconds="1")
        assert animator.done(extension)["num_frames"] == 17


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/edits", {}, 400, "video"),
        ("/edits", {"video": {"id": 5}}, 400, "video.id"),
        ("/edits", {"video": {"id": "video_none"}}, 404, "video_id"),
        ("/edits", {"video": []}, 400, "video"),
        ("/edits", {"video": {"file_id": "a"}}, 400, "video.file_id"),
        ("/edits", {"video": data_url("image/png", png(8, 8))}, 400, "video.video_url"),
        ("/extensions", {"seconds": "4"}, 400, "video"),
        ("/extensions", {"video": {"id": "video_none"}}, 400, "seconds"),
        ("/extensions", {"video": {"id": "video_none"}, "seconds": "4"}, 404, "video_id"),
        ("/extensions", {"video": {"id": "video_none"}, "seconds": "1e308"}, 400, "seconds"),
        ("/video_none/remix", {}, 404, "video_id"),
        ("/video_none/remix", {"prompt": ""}, 400, "prompt"),
    ],
)
def test_what_cannot_be_made_of_a_video_is_refused(
    path: str, body: dict[str, Any], status: int, param: str, restyler: Server
) -> None:
    answer = restyler.post(path, **body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_video_that_is_not_completed_is_the_source_of_none(restyler: Server) -> None:
    job = restyler.post("", prompt="hang").json()
    remix = restyler.post(f"/{job['id']}/remix")
    assert (remix.status_code, remix.json()["error"]["param"]) == (400, "video_id")
    edit = restyler.post("/edits", video={"id": job["id"]})
    assert (edit.status_code, edit.json()["error"]["param"]) == (400, "video.id")
    assert restyler.client.delete(f"{URL}/{job['id']}").status_code == 200


def test_an_extension_is_whole_though_its_source_is_deleted_meanwhile(restyler: Server) -> None:
    running = [restyler.post("", prompt="hang").json() for _ in range(4)]
    source_place = ""
    try:
        others = [one["id"] for one in running]
        wait_until(
            lambda: all(restyler.client.get(f"{URL}/{one}").json()["progress"] for one in others)
        )
        done = restyler.client.get(URL, params={"limit": 100}).json()["data"]
        source = next(one for one in done if one["status"] == "completed")
        source_place = f"{URL}/{source['id']}"
        answer = restyler.post("/extensions", video={"id": source["id"]}, seconds="1")
        assert answer.json()["status"] == "queued"
        assert restyler.client.delete(source_place).status_code == 200
    finally:
        for one in running:
            restyler.client.delete(f"{URL}/{one['id']}")
    assert restyler.done(answer)["num_frames"] == source["num_frames"] + 8
