"""Jobs of /v1/videos when their server is killed: none is lost or stuck, and no file is left."""

import io
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from support.api.doors import ONE_SHOT
from support.fakes.served import Served
from support.waiting import wait_until

from omnistage.server.tasks.videos.job import FILES

URL = "/v1/videos"
NUM_JOBS = 50
WHOLE = {"job.json", *(name for name, _ in FILES.values())}
Json = dict[str, Any]


@contextmanager
def serving(folder: Path, log: Path, **environment: str) -> Iterator[tuple[Served, httpx.Client]]:
    served = Served(log, graph="studio", FAKE_SERVER_VIDEOS=str(folder), **environment)
    try:
        with httpx.Client(base_url=served.url, timeout=600, limits=ONE_SHOT) as client:
            yield served, client
    finally:
        served.process.kill()
        served.process.wait()


def kill(served: Served) -> None:
    served.process.send_signal(signal.SIGKILL)
    served.process.wait()


def create(client: httpx.Client, prompt: str) -> str:
    answer = client.post(URL, json={"prompt": prompt})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def jobs(client: httpx.Client) -> dict[str, Json]:
    answer = client.get(URL, params={"limit": 100, "order": "asc"}).json()
    assert not answer["has_more"]
    return {job["id"]: job for job in answer["data"]}


def on_disk(folder: Path) -> dict[str, set[str]]:
    return {path.name: {one.name for one in path.iterdir()} for path in folder.iterdir()}


def check_whole(client: httpx.Client, job: Json) -> None:
    for variant in FILES:
        answer = client.get(f"{URL}/{job['id']}/content", params={"variant": variant})
        assert answer.status_code == 200
        if variant == "video":
            with av.open(io.BytesIO(answer.content)) as container:
                assert len(list(container.decode(video=0))) == job["num_frames"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "videos"
    made.mkdir()
    return made


def test_of_50_jobs_those_that_had_ended_are_there_and_others_have_failed(
    folder: Path, tmp_path: Path
) -> None:
    with serving(folder, tmp_path / "first.log") as (first, client):
        done = [create(client, f"a cat {number}") for number in range(10)]
        wait_until(lambda: all(one["status"] == "completed" for one in jobs(client).values()))
        hanging = [create(client, "hang") for _ in range(4)]
        wait_until(lambda: all(jobs(client)[one]["progress"] == 50 for one in hanging))
        waiting = [create(client, f"a dog {number}") for number in range(NUM_JOBS - 14)]
        before = jobs(client)
        assert [before[one]["status"] for one in waiting] == ["queued"] * len(waiting)
        kill(first)
    with serving(folder, tmp_path / "second.log") as (_, client):
        after = jobs(client)
        assert list(after) == [*done, *hanging, *waiting]
        for one in done:
            assert after[one] == before[one]
            check_whole(client, after[one])
        for one in (*hanging, *waiting):
            assert after[one]["status"] == "failed"
            assert after[one]["error"]["code"] == "server_restarted"
        assert on_disk(folder) == {name: WHOLE if name in done else {"job.json"} for name in after}
        new = create(client, "a bird")
        wait_until(lambda: jobs(client)[new]["status"] == "completed")


@pytest.mark.parametrize("num_done", [3, 11])
def test_a_server_that_is_killed_amid_its_work_leaves_whole_videos_within_the_bound(
    num_done: int, folder: Path, tmp_path: Path
) -> None:
    bound = {"FAKE_SERVER_VIDEO_BYTES": "60000"}  # of about a dozen of them
    with serving(folder, tmp_path / "first.log", **bound) as (first, client):
        for number in range(NUM_JOBS):
            create(client, f"a cat {number}")
        wait_until(
            lambda: sum(one["status"] == "completed" for one in jobs(client).values()) >= num_done
        )
        kill(first)
    with serving(folder, tmp_path / "second.log", **bound) as (_, client):
        after = jobs(client)
        statuses = {job["status"] for job in after.values()}
        assert statuses <= {"completed", "failed"}
        assert sum(job["status"] == "completed" for job in after.values()) >= min(num_done, 3)
        for job in after.values():
            if job["status"] == "completed":
                check_whole(client, job)
        kept = on_disk(folder)
        assert kept.keys() == after.keys()
        for name, files in kept.items():
            assert files == (WHOLE if after[name]["status"] == "completed" else {"job.json"})
        found = (path for path in folder.rglob("*") if path.name != "job.json" and path.is_file())
        assert sum(path.stat().st_size for path in found) <= 60_000


def test_without_a_folder_the_next_server_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {"FAKE_SERVER_VIDEOS": "", "TMPDIR": str(scratch)}
    served = Served(tmp_path / "first.log", graph="studio", **environment)
    with httpx.Client(base_url=served.url, timeout=600, limits=ONE_SHOT) as client:
        one = create(client, "a cat")
        wait_until(lambda: jobs(client)[one]["status"] == "completed")
        assert list(scratch.rglob("video.mp4"))
    kill(served)
    after = Served(tmp_path / "second.log", graph="studio", **environment)
    try:
        assert not list(scratch.rglob("video.mp4"))
        assert httpx.get(f"{after.url}{URL}").json()["data"] == []
        after.process.terminate()
        assert after.process.wait(600) == 0
    finally:
        after.process.kill()
    assert not list(scratch.rglob("video*"))
