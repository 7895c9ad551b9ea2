"""The jobs of /v1/videos as OpenAI has them, through its own client and by its specification."""

import io
import time
from collections.abc import Iterator
from pathlib import Path

import av
import httpx
import pytest
from openai import NotFoundError, OpenAI
from PIL import Image
from support.api.openai_spec import assert_valid
from support.gateway.serving import MODEL, RunningGateway
from support.gateway.video_jobs import SIZE, URL, create, done, job_of, when
from support.media.pictures import png

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")


@pytest.fixture
def openai(studio: RunningGateway) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{studio.url}/v1",
        api_key="none",
        max_retries=0,
        default_headers={"Connection": "close"},
        _strict_response_validation=True,
    ) as connected:
        yield connected


def test_a_video_is_created_polled_downloaded_and_deleted_by_openai_s_client(
    openai: OpenAI, tmp_path: Path
) -> None:
    before = int(time.time())
    video = openai.videos.create_and_poll(
        prompt="a cat", seconds="4", size=SIZE, poll_interval_ms=50
    )
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert (video.prompt, video.model, video.size) == ("a cat", MODEL, SIZE)
    assert video.seconds == "4.125", "33 frames at 8 a second: the pipeline makes 4k + 1"
    assert video.completed_at is not None
    assert before <= video.created_at <= video.completed_at <= time.time()
    assert video.expires_at == video.completed_at + 86_400

    data = openai.videos.download_content(video.id)
    data.write_to_file(tmp_path / "video.mp4")
    with av.open(str(tmp_path / "video.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.frames, float(stream.average_rate)) == (33, 8)
        assert (stream.width, stream.height) == (1280, 720)
    with Image.open(
        io.BytesIO(openai.videos.download_content(video.id, variant="thumbnail").read())
    ) as image:
        assert (image.format, image.size) == ("WEBP", (512, 288))
    with Image.open(
        io.BytesIO(openai.videos.download_content(video.id, variant="spritesheet").read())
    ) as image:
        assert (image.format, image.size) == ("JPEG", (5 * 256, 5 * 144))

    deleted = openai.videos.delete(video.id)
    assert (deleted.id, deleted.deleted) == (video.id, True)
    with pytest.raises(NotFoundError):
        openai.videos.retrieve(video.id)


def test_a_reference_comes_from_a_file(
    openai: OpenAI, studio: RunningGateway, tmp_path: Path
) -> None:
    (tmp_path / "first.png").write_bytes(png(64, 48))
    video = openai.videos.create_and_poll(
        prompt="a cat", size=SIZE, input_reference=tmp_path / "first.png", poll_interval_ms=50
    )
    assert video.status == "completed"
    chunk = studio.stages.stages["studio"].opened[-1]
    (medium,) = chunk.message.given_media
    assert medium.field == "image"
    assert chunk.tensors[medium.tensor].numpy().shape == (48, 64, 3)


def test_answers_are_as_openai_specifies(client: httpx.Client) -> None:
    job = create(client, size=SIZE)
    assert_valid(job, "VideoResource", "videos")
    assert (job["status"], job["progress"], job["completed_at"]) == ("queued", 0, None)
    assert (job["seconds"], job["num_frames"], job["fps"]) == ("1.125", 9, 8)
    assert_valid(done(client, job), "VideoResource", "videos")
    failed = create(client, size=SIZE, prompt="refuse")
    assert_valid(done(client, failed), "VideoResource", "videos")
    assert_valid(client.get(URL).json(), "VideoListResource", "videos")
    assert_valid(client.get(URL, params={"limit": 0}).json(), "VideoListResource", "videos")
    gone = client.delete(f"{URL}/{job['id']}").json()
    assert_valid(gone, "DeletedVideoResource", "videos")


def test_progress_is_the_share_of_steps(client: httpx.Client) -> None:
    job = create(client, prompt="hang")
    half = when(client, job, lambda now: now["progress"])
    assert (half["status"], half["progress"]) == ("in_progress", 50)
    answer = client.get(f"{URL}/{job['id']}/content")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "video_not_ready"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("refuse", "makes no video"), ("fail later", "Stage studio failed: broken")],
)
def test_a_failed_job_says_why(prompt: str, message: str, client: httpx.Client) -> None:
    failed = done(client, create(client, prompt=prompt))
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == message
    assert failed["completed_at"] is None
    assert client.get(f"{URL}/{failed['id']}/content").status_code == 404


def test_a_list_has_two_pages_in_both_orders(openai: OpenAI, client: httpx.Client) -> None:
    ids = [create(client, size=SIZE, num_frames=1)["id"] for _ in range(3)]
    for one in ids:
        done(client, {"id": one})
    first = openai.videos.list(limit=2)
    assert [one.id for one in first.data] == ids[:0:-1]
    assert first.has_next_page()
    second = first.get_next_page()
    assert [one.id for one in second.data] == ids[:1]
    assert not second.has_next_page()
    assert [one.id for one in openai.videos.list(order="asc", limit=2)] == ids
    answer = client.get(URL, params={"after": "video_none"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize("query", ["limit=101", "limit=-1", "limit=x", "order=up"])
def test_a_page_that_cannot_be_is_a_400(query: str, client: httpx.Client) -> None:
    assert client.get(f"{URL}?{query}").status_code == 400


def test_a_deleted_job_that_runs_is_cancelled_in_its_stage(
    client: httpx.Client, studio: RunningGateway
) -> None:
    job = create(client, prompt="hang")
    when(client, job, lambda now: now["progress"])
    assert client.delete(f"{URL}/{job['id']}").status_code == 200
    assert client.get(f"{URL}/{job['id']}").status_code == 404
    studio.wait_until_idle()
    stage = studio.stages.stages["studio"]
    assert stage.cancelled[-1] == stage.opened[-1].request_id


def test_a_deleted_job_that_waits_never_runs(client: httpx.Client, studio: RunningGateway) -> None:
    running = [create(client, prompt="hang") for _ in range(4)]
    for job in running:
        when(client, job, lambda now: now["progress"])
    waiting = create(client, prompt="a dog")
    assert job_of(client, waiting)["status"] == "queued"
    assert client.delete(f"{URL}/{waiting['id']}").status_code == 200
    for job in running:
        client.delete(f"{URL}/{job['id']}")
    after = done(client, create(client, prompt="a bird"))
    assert after["status"] == "completed"
    prompts = [one.message.fields["prompt"] for one in studio.stages.stages["studio"].opened]
    assert "a dog" not in prompts


@pytest.mark.parametrize(
    ("given", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=10-", 206, slice(10, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=0-99999999", 206, slice(0, None)),
        ("bytes=99999999-", 416, None),
        ("bytes=5-3", 416, None),
        ("bytes=-0", 416, None),
        ("pages=1-2", 400, None),
        ("bytes=a-b", 400, None),
        ("bytes=" + "9" * 5000 + "-", 400, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_is_answered_in_ranges(
    given: str, status: int, part: slice | None, client: httpx.Client
) -> None:
    job = done(client, create(client))
    place = f"{URL}/{job['id']}/content"
    whole = client.get(place)
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-type"] == "video/mp4"
    answer = client.get(place, headers={"Range": given})
    assert answer.status_code == status, answer.text
    if part is None:
        assert answer.json()["error"]["param"] == "Range"
    else:
        assert answer.content == whole.content[part]
        assert answer.headers["content-range"].endswith(f"/{len(whole.content)}")


def test_several_ranges_are_parts_of_one_answer(client: httpx.Client) -> None:
    place = f"{URL}/{done(client, create(client))['id']}/content"
    answer = client.get(place, headers={"Range": "bytes=0-1, -2"})
    assert answer.status_code == 206
    assert answer.headers["content-type"].startswith("multipart/byteranges")


def test_a_variant_that_is_none_is_a_400(client: httpx.Client) -> None:
    job = done(client, create(client))
    answer = client.get(f"{URL}/{job['id']}/content", params={"variant": "poster"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "query.variant")
