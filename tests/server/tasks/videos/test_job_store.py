"""Jobs that are kept: bounded, each its owner's, and whole after whatever ended the server."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.waiting import until

from omnistage.server.common.errors import ApiError
from omnistage.server.tasks.videos.job import FILES, JobError, StoredMedium, VideoJob
from omnistage.server.tasks.videos.job_files import INTERRUPTED, JobFiles
from omnistage.server.tasks.videos.job_store import VideoStore

NUM_BYTES = 300
MADE = {name: bytes(NUM_BYTES // 3) for name, _ in FILES.values()}


def job(number: int, **changes: Any) -> VideoJob:
    about = VideoJob(
        id=f"video_{number}",
        owner=None,
        created_at=1000.0 + number,
        model="m",
        fields={"prompt": f"a cat {number}"},
    )
    return msgspec.structs.replace(about, **changes)


def with_media(number: int, size: int = 50) -> tuple[VideoJob, dict[str, bytes]]:
    media = [StoredMedium("image", "image", "input_reference", "medium-0")]
    return job(number, media=media, num_bytes=size), {"medium-0": bytes(size)}


async def completed(store: VideoStore, number: int) -> VideoJob:
    await store.add(job(number), {})
    done = store.get(f"video_{number}", None).completed((64, 48), 9, 8.0, NUM_BYTES)
    await store.end(done, MADE)
    return done


def kept(folder: Path) -> dict[str, set[str]]:
    """What is on the disk: folders, and what is in each."""
    return {path.name: {one.name for one in path.iterdir()} for path in folder.iterdir()}


def used(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "job.json")
    return sum(path.stat().st_size for path in files)


async def flushed(store: VideoStore) -> None:
    """Whatever was to be written or removed is."""
    await store._do(lambda: None)


WHOLE = {"job.json", *MADE}


async def test_a_job_has_its_media_until_it_ends_and_then_its_files(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 10_000, 60)
    queued, files = with_media(1)
    await store.add(queued, files)
    assert kept(tmp_path) == {"video_1": {"job.json", "medium-0"}}
    assert await store.read(queued, "medium-0") == files["medium-0"]
    await store.end(queued.completed((64, 48), 9, 8.0, NUM_BYTES), MADE)
    assert kept(tmp_path) == {"video_1": WHOLE}
    await store.delete("video_1")
    assert kept(tmp_path) == {}


async def test_the_next_server_has_what_had_ended_and_others_have_failed(tmp_path: Path) -> None:
    first = VideoStore(tmp_path, 10_000, 60)
    done = await completed(first, 1)
    await first.add(*with_media(2))
    await first.add(job(3), {})
    await first.end(job(3).failed(JobError("a", "b")), {})
    second = VideoStore(tmp_path, 10_000, 60)
    assert second.get("video_1", None) == done
    interrupted = second.get("video_2", None)
    assert (interrupted.status, interrupted.error) == ("failed", INTERRUPTED)
    assert second.get("video_3", None).error == JobError("a", "b")
    assert kept(tmp_path) == {"video_1": WHOLE, "video_2": {"job.json"}, "video_3": {"job.json"}}
    third = VideoStore(tmp_path, 10_000, 60)
    assert third.get("video_2", None) == interrupted


async def test_of_fifty_jobs_of_a_killed_server_none_is_lost_or_waits(tmp_path: Path) -> None:
    bound, num_done = 5 * NUM_BYTES, 10
    first = VideoStore(tmp_path, bound, 60)
    for number in range(num_done):
        await completed(first, number)
    for number in range(num_done, num_done + 50):
        await first.add(*with_media(number, size=2))
    await flushed(first)
    second = VideoStore(tmp_path, bound, 60)
    await flushed(second)
    jobs, has_more = second.page(None, 100, None, True)
    states = {one.id: (one.status, one.error) for one in jobs}
    waiting = {f"video_{number}" for number in range(num_done, num_done + 50)}
    assert not has_more
    assert {name for name, state in states.items() if state == ("failed", INTERRUPTED)} == waiting
    assert {states[name][0] for name in states.keys() - waiting} == {"completed"}
    assert kept(tmp_path).keys() == states.keys()
    assert all(kept(tmp_path)[name] == {"job.json"} for name in waiting)
    assert used(tmp_path) <= bound


def test_what_a_killed_server_leaves_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".video_1.unfinished", "video_2", "video_3", "video_4", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "video.mp4").write_bytes(b"half")
    (tmp_path / "video_3" / "job.json").write_text("{")
    (tmp_path / "video_4" / "job.json").write_bytes(
        msgspec.json.encode(job(4).completed((64, 48), 9, 8.0, NUM_BYTES))
    )
    (tmp_path / "notes.txt").write_text("mine")
    store = VideoStore(tmp_path, 10_000, 60)
    assert store.page(None, 10, None, True) == ([], False)
    assert {path.name for path in tmp_path.iterdir()} == {"other", "notes.txt"}


def test_files_that_a_job_does_not_name_are_removed(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.create(job(1), {})
    files.end(job(1).completed((64, 48), 9, 8.0, NUM_BYTES), MADE)
    (tmp_path / "video_1" / "job.json.unfinished").write_bytes(b"half")
    files.create(job(2), {})
    (tmp_path / "video_2" / "video.mp4").write_bytes(b"of a server that was killed amid it")
    assert {one.id for one in JobFiles(tmp_path).jobs()} == {"video_1", "video_2"}
    assert kept(tmp_path) == {"video_1": WHOLE, "video_2": {"job.json"}}


async def test_the_oldest_that_have_ended_go_for_new_ones(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 3 * NUM_BYTES, 60)
    for number in range(5):
        await completed(store, number)
        await flushed(store)
        assert used(tmp_path) <= 3 * NUM_BYTES
    ids = [one.id for one in store.page(None, 10, None, True)[0]]
    assert ids == ["video_2", "video_3", "video_4"]
    assert kept(tmp_path).keys() == set(ids)
    again = VideoStore(tmp_path, NUM_BYTES, 60)
    await flushed(again)
    assert kept(tmp_path).keys() == {"video_4"}


async def test_a_job_that_waits_is_never_dropped_for_another(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 1000, 60)
    await store.add(*with_media(1, 600))
    with pytest.raises(ApiError, match="keeps 0 MiB of videos, and all wait") as refused:
        await store.add(*with_media(2, 600))
    assert (refused.value.status, refused.value.code) == (429, "videos_full")
    assert kept(tmp_path).keys() == {"video_1"}


async def test_a_video_that_is_larger_than_all_is_not_kept(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, NUM_BYTES - 1, 60)
    await store.add(job(1), {})
    with pytest.raises(ApiError) as refused:
        await store.end(job(1).completed((64, 48), 9, 8.0, NUM_BYTES), MADE)
    assert (refused.value.status, refused.value.code) == (507, "videos_full")
    await store.end(job(1).failed(JobError.of(refused.value)), {})
    assert kept(tmp_path) == {"video_1": {"job.json"}}


async def test_a_job_is_kept_for_so_long_after_its_end(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 10_000, 0.3)
    await store.add(*with_media(1))
    await completed(store, 2)
    await until(lambda: kept(tmp_path).keys() == {"video_1"})  # nobody asks, and it goes
    with pytest.raises(ApiError, match="No video"):
        store.get("video_2", None)
    await flushed(store)


async def test_a_job_that_was_deleted_leaves_nothing_when_it_ends(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 10_000, 60)
    await store.add(job(1), {})
    await store.delete("video_1")
    await store.end(job(1).completed((64, 48), 9, 8.0, NUM_BYTES), MADE)
    await store.end(job(1).failed(JobError("a", "b")), {})
    assert kept(tmp_path) == {}
    assert store.page(None, 10, None, True) == ([], False)


async def test_nobody_sees_a_completed_job_before_its_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VideoStore(tmp_path, 10_000, 60)
    await store.add(job(1), {})
    writing, written = asyncio.Event(), threading.Event()
    loop, end = asyncio.get_running_loop(), JobFiles.end

    def slow_end(self: JobFiles, *given: Any) -> None:
        loop.call_soon_threadsafe(writing.set)
        assert written.wait(600)
        end(self, *given)

    monkeypatch.setattr(JobFiles, "end", slow_end)
    done = job(1).completed((64, 48), 9, 8.0, NUM_BYTES)
    ending = asyncio.create_task(store.end(done, MADE))
    await writing.wait()
    assert store.get("video_1", None).status == "queued"
    written.set()
    await ending
    assert store.get("video_1", None) == done
    assert kept(tmp_path) == {"video_1": WHOLE}


async def test_a_job_that_is_deleted_while_its_files_are_written_frees_their_room(
    tmp_path: Path,
) -> None:
    store = VideoStore(tmp_path, NUM_BYTES, 60)
    for number in range(3):
        await store.add(job(number), {})
        done = job(number).completed((64, 48), 9, 8.0, NUM_BYTES)
        ending = asyncio.create_task(store.end(done, MADE))
        await asyncio.sleep(0)
        if number == 1:
            ending.cancel()
        await store.delete(job(number).id)
        await asyncio.wait({ending})
    await completed(store, 5)
    assert kept(tmp_path) == {"video_5": WHOLE}


async def test_a_failure_that_cannot_be_written_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VideoStore(tmp_path, 10_000, 60)
    await store.add(job(1), {})

    def full(self: JobFiles, *given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JobFiles, "end", full)
    with pytest.raises(ApiError, match="cannot be stored"):
        await store.end(job(1).completed((64, 48), 9, 8.0, NUM_BYTES), MADE)
    await store.end(job(1).failed(JobError("a", "b")), {})
    assert store.get("video_1", None).status == "failed"


async def test_a_client_that_leaves_while_its_job_is_stored_leaves_none(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 10_000, 60)
    adding = asyncio.create_task(store.add(*with_media(1)))
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await flushed(store)
    assert kept(tmp_path) == {}


async def test_each_owner_has_its_own(tmp_path: Path) -> None:
    store = VideoStore(tmp_path, 10_000, 60)
    for number, owner in enumerate(["ann", "bob", "ann", None]):
        await store.add(job(number, owner=owner), {})
    assert [one.id for one in store.page("ann", 10, None, False)[0]] == ["video_2", "video_0"]
    assert store.page("ann", 1, None, False)[1]
    assert [one.id for one in store.page("ann", 1, "video_2", False)[0]] == ["video_0"]
    for owner in ("bob", None):
        with pytest.raises(ApiError, match="No video"):
            store.get("video_0", owner)
        with pytest.raises(ApiError, match="the id of no video"):
            store.page(owner, 1, "video_0", False)


async def test_a_folder_that_is_full_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    store = VideoStore(tmp_path / "file", 10_000, 60)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ApiError, match="cannot be stored") as refused:
        await store.add(*with_media(1))
    assert refused.value.status == 500
    assert store.page(None, 10, None, True) == ([], False)


def test_a_description_is_json(tmp_path: Path) -> None:
    JobFiles(tmp_path).create(job(1, owner="ann"), {})
    about = json.loads((tmp_path / "video_1" / "job.json").read_text())
    assert (about["owner"], about["status"], about["fields"]) == (
        "ann",
        "queued",
        {"prompt": "a cat 1"},
    )
    assert about["created_at"] < time.time()
