"""The jobs of /v1/videos as OpenAI has them, through its own client and by its specification."""

import io
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal

import av
import httpx
import numpy as np
import pytest
from openai import NotFoundError, OpenAI
from PIL import Image
from support.doors import ONE_SHOT
from support.gateway import MODEL, OMNI, STUDIO, RunningGateway, running_gateway
from support.openai_spec import assert_valid
from support.pictures import png
from support.prompts import data_url, video_bytes
from support.waiting import wait_until

from omnistage.server.http.access.keys import Keys
from omnistage.server.options.bounds import VideoBounds
from omnistage.server.runtime.changes import Change
from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.flights import Flights
from omnistage.server.runtime.stage_link import OwnedStage
from omnistage.stages.messages.to_gateway import Ready

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

URL = "/v1/videos"
SIZE: Literal["1280x720"] = "1280x720"  # one of those that OpenAI's specification names


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("studio"), STUDIO, arena_mb=64) as running:
        yield running


@pytest.fixture
def client(studio: RunningGateway) -> Iterator[httpx.Client]:
    with client_of(studio) as connected:
        yield connected
        for job in connected.get(URL, params={"limit": 100}).json()["data"]:
            connected.delete(f"{URL}/{job['id']}")


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


def client_of(gateway: RunningGateway, key: str = "none") -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT, headers=headers)


def create(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post(URL, json={"prompt": "a cat", **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def job_of(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    answer = client.get(f"{URL}/{job['id']}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def when(client: httpx.Client, job: dict[str, Any], is_so: Callable[[Any], Any]) -> dict[str, Any]:
    wait_until(lambda: is_so(job_of(client, job)))
    return job_of(client, job)


def done(client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    return when(client, job, lambda now: now["status"] in ("completed", "failed"))


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


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "characters"),
        ("GET", "characters/char_1"),
        ("GET", "nothing"),
        ("GET", "video_none"),
        ("DELETE", "video_none"),
        ("GET", "video_none/content"),
    ],
)
def test_what_is_not_there_is_a_404(method: str, path: str, client: httpx.Client) -> None:
    answer = client.request(method, f"{URL}/{path}", json={} if method == "POST" else None)
    assert answer.status_code == 404, answer.text
    is_video = path.startswith("video_")
    assert answer.json()["error"]["code"] == ("video_not_found" if is_video else None)


def test_a_job_that_cannot_be_is_refused_at_once(
    client: httpx.Client, studio: RunningGateway
) -> None:
    before = len(studio.stages.stages["studio"].opened)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"prompt": ""}, "prompt"),
        ({"size": "72x48"}, "size"),
        ({"size": "4096x4096"}, "num_frames"),
        ({"size": "1280x720", "seconds": "20"}, "seconds"),
        ({"seconds": "4", "num_frames": 9}, "seconds"),
        ({"input_reference": "data:image/png;base64,AAAA"}, "input_reference.image_url"),
        ({"model": "sora-2"}, "model"),
    ]
    for fields, param in refused:
        answer = client.post(URL, json={"prompt": "a cat", **fields})
        assert answer.status_code == (404 if param == "model" else 400), answer.text
        assert answer.json()["error"]["param"] == param
    assert client.get(URL).json()["data"] == []
    assert len(studio.stages.stages["studio"].opened) == before


def test_a_model_without_videos_says_so(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as omni, client_of(omni) as client:
        given = {"video": data_url("video/mp4", video_bytes(5, 16)), "seconds": "4"}
        for path, more in (("", {}), ("/sync", {}), ("/edits", given), ("/extensions", given)):
            answer = client.post(f"{URL}{path}", json={"prompt": "a cat", **more})
            assert answer.status_code == 400
            assert "makes no videos" in answer.json()["error"]["message"]
        assert client.get(URL).json()["data"] == []


def test_each_key_sees_its_own_jobs(tmp_path: Path) -> None:
    keys = Keys(["sk-ann", "sk-bob"])
    with (
        running_gateway(tmp_path, STUDIO, keys=keys) as guarded,
        client_of(guarded, "sk-ann") as ann,
        client_of(guarded, "sk-bob") as bob,
    ):
        job = done(ann, create(ann))
        place = f"{URL}/{job['id']}"
        assert [one["id"] for one in ann.get(URL).json()["data"]] == [job["id"]]
        assert bob.get(URL).json()["data"] == []
        for answer in (bob.get(place), bob.get(f"{place}/content"), bob.delete(place)):
            assert answer.status_code == 404
        assert ann.get(f"{place}/content").status_code == 200


def test_a_full_queue_is_a_429(tmp_path: Path) -> None:
    bounds = VideoBounds(max_queue=3, at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as full, client_of(full) as client:
        jobs = [create(client, prompt="hang") for _ in range(3)]
        answer = client.post(URL, json={"prompt": "a cat"})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("requests", "video_queue_full")
        statuses = [job_of(client, job)["status"] for job in jobs]
        assert statuses == ["in_progress", "queued", "queued"]
        client.delete(f"{URL}/{jobs[1]['id']}")
        assert client.post(URL, json={"prompt": "hang"}).status_code == 200


def test_a_video_is_read_on_while_it_is_deleted(client: httpx.Client) -> None:
    job = done(client, create(client, size=SIZE, num_frames=33))
    place = f"{URL}/{job['id']}"
    whole = client.get(f"{place}/content").content
    with client.stream("GET", f"{place}/content") as answer:
        assert client.delete(place).status_code == 200
        assert answer.read() == whole
    assert np.frombuffer(whole, np.uint8).size > 10_000


def test_a_stage_that_ends_fails_what_it_runs_and_makes_what_waits_after_its_restart(
    tmp_path: Path,
) -> None:
    bounds = VideoBounds(at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as mortal, client_of(mortal) as client:
        running, waiting = create(client, prompt="hang"), create(client)
        when(client, running, lambda now: now["progress"])
        mortal.do(mortal.stages.stages["studio"].kill)
        failed = done(client, running)
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "stage_unavailable"
        assert done(client, waiting)["status"] == "completed"


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that any server is asked to admit from now on."""
    found: list[object] = []
    admit = Flights.admit

    def admitted(flights: Flights, outputs: Collection[str]) -> Ticket:
        found.append(outputs)
        return admit(flights, outputs)

    monkeypatch.setattr(Flights, "admit", admitted)
    return found


def test_a_full_server_makes_a_job_wait_for_the_end_of_an_answer(
    tmp_path: Path, tries: list[object]
) -> None:
    graph = {**STUDIO, "deadlines": {"first_chunk_s": 60, "next_chunk_s": 60}}
    with running_gateway(tmp_path, graph, max_requests=1) as full, client_of(full) as client:
        first = create(client, prompt="hang")
        when(client, first, lambda now: now["progress"])
        refused = client.post(f"{URL}/sync", json={"prompt": "a cat"})
        assert refused.status_code == 503
        second = create(client)
        time.sleep(1.5 * int(refused.headers["retry-after"]))
        assert job_of(client, second)["status"] == "queued"
        assert len(tries) == 3, "it does not ask again meanwhile"
        assert client.delete(f"{URL}/{first['id']}").status_code == 200
        assert done(client, second)["status"] == "completed"
        assert len(tries) == 4


CHANGE: Change = ("add_lora", {})


@pytest.mark.parametrize(
    ("shut", "open_again"),
    [
        (OwnedStage.refuse_requests, OwnedStage.accept_requests),
        (lambda link: link.note_missed([CHANGE]), lambda link: link.note_done(CHANGE)),
        (lambda link: link.begin_next_generation(), lambda link: link.apply(Ready())),
    ],
    ids=["asleep", "differs", "loading"],
)
def test_a_job_waits_for_its_stage_to_take_requests_again(
    shut: Callable[[OwnedStage], None],
    open_again: Callable[[OwnedStage], None],
    tmp_path: Path,
    tries: list[object],
) -> None:
    bounds = VideoBounds(at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as gateway, client_of(gateway) as client:
        (link,) = gateway.runtime.fleet.stages.values()
        assert isinstance(link, OwnedStage)
        first, second = create(client, prompt="hang"), create(client)
        when(client, first, lambda now: now["progress"])
        gateway.do(lambda: shut(link))
        assert client.delete(f"{URL}/{first['id']}").status_code == 200
        wait_until(lambda: len(tries) == 2)
        assert job_of(client, second)["status"] == "queued"
        gateway.do(lambda: open_again(link))
        assert done(client, second)["status"] == "completed"
        assert len(tries) == 3


def test_a_job_that_waits_ends_with_its_server(tmp_path: Path, tries: list[object]) -> None:
    bounds = VideoBounds(at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as gateway, client_of(gateway) as client:
        (link,) = gateway.runtime.fleet.stages.values()
        assert isinstance(link, OwnedStage)
        first, second = create(client, prompt="hang"), create(client)
        when(client, first, lambda now: now["progress"])
        gateway.do(link.refuse_requests)
        client.delete(f"{URL}/{first['id']}")
        wait_until(lambda: len(tries) == 2)
        gateway.do(gateway.runtime.flights.stop_admitting)
        failed = done(client, second)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "stopping")
