"""The jobs that a server keeps: bounded in bytes and in age, each seen by its owner alone."""

import asyncio
import logging
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.tasks.videos.job import VideoJob
from omnistage.server.tasks.videos.job_files import JobFiles

logger = logging.getLogger(__name__)

MAX_JOBS = 10_000
SLACK_S = 0.1  # after the time at which a job is too old
RETRY_S = 30  # when there is no room for what a job brings

T = TypeVar("T")


class VideoStore:
    """Jobs and their files, in a folder of their own, or in a temporary one without it.

    The oldest that have ended go first, and all that have for `max_age_s`. One thread writes: what
    is done to a job's files happens in order, also if nobody waits for it any more.
    """

    def __init__(self, folder: Path | None, max_bytes: int, max_age_s: float) -> None:
        if folder is None:
            folder = Path(tempfile.gettempdir()) / f"omnistage-videos-{secrets.token_hex(8)}"
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._files = JobFiles(folder)
        self._disk = ThreadPoolExecutor(1, "videos")
        self._timer: asyncio.TimerHandle | None = None
        found = sorted(self._files.jobs(), key=lambda job: (job.created_at, job.id))
        self._jobs = {job.id: job for job in found}
        self._num_bytes = sum(job.num_bytes for job in found)
        self._make_room(0)

    def get(self, job_id: str, owner: str | None) -> VideoJob:
        """Return a job of this owner; ApiError if there is none."""
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner or self._is_old(job):
            message = f"No video with the id {job_id!r} is kept, or it has expired."
            raise ApiError(404, message, param="video_id", code="video_not_found")
        return job

    def page(
        self, owner: str | None, limit: int, after: str | None, is_ascending: bool
    ) -> tuple[list[VideoJob], bool]:
        """Return the jobs of an owner behind one of them, and whether there are more."""
        kept = self._jobs.values()
        jobs = [job for job in kept if job.owner == owner and not self._is_old(job)]
        jobs = jobs if is_ascending else jobs[::-1]
        start = 0
        if after is not None:
            start = next((i for i, job in enumerate(jobs, 1) if job.id == after), 0)
            if not start:
                raise invalid("after", "is the id of no video")
        return jobs[start : start + limit], start + limit < len(jobs)

    async def add(self, job: VideoJob, files: Mapping[str, bytes]) -> None:
        """Keep a new job with its media; ApiError if there is no room for them."""
        self._expire()
        if not self._make_room(job.num_bytes, 1):
            message = f"The server keeps {self._max_bytes >> 20} MiB of videos, and all wait."
            raise ApiError(429, message, type="requests", code="videos_full", retry_after_s=RETRY_S)
        self._jobs[job.id] = job
        self._num_bytes += job.num_bytes
        try:
            await self._do(lambda: self._files.create(job, files))
        except OSError as error:
            self._forget(job.id)
            raise not_stored(error) from error
        except asyncio.CancelledError:
            self._drop(job.id)
            raise

    async def end(self, job: VideoJob, files: Mapping[str, bytes]) -> None:
        """Keep how a job ended, with its files; ApiError if there is no room for them.

        Nobody sees it before they are there. Nothing happens to one that was deleted meanwhile.
        """
        before = self._jobs.get(job.id)
        if before is None:
            return
        more = job.num_bytes - before.num_bytes
        if not self._make_room(more):
            message = f"The video is larger than the {self._max_bytes >> 20} MiB that are kept."
            raise ApiError(507, message, code="videos_full")
        self._num_bytes += more
        try:
            await self._do(lambda: self._files.end(job, files))
        except OSError as error:
            if job.status != "failed":
                self._num_bytes -= more
                raise not_stored(error) from error
            logger.error("video %s: that it failed cannot be stored: %s", job.id, error)
        except BaseException:
            self._num_bytes -= more
            raise
        if job.id in self._jobs:
            self._jobs[job.id] = job
        else:
            self._num_bytes -= more
        self._expire()

    async def read(self, job: VideoJob, name: str) -> bytes:
        """Return a file of a job; raises ApiError."""
        try:
            return await asyncio.to_thread(self._files.read, job.id, name)
        except OSError as error:
            raise not_there(job, error) from error

    async def open(self, job: VideoJob, name: str) -> int:
        """Open a file of a job for reading; returns its descriptor, raises ApiError."""
        try:
            return await asyncio.to_thread(self._files.open, job.id, name)
        except OSError as error:
            raise not_there(job, error) from error

    async def delete(self, job_id: str) -> None:
        """Forget a job and remove its files; who reads one of them reads on."""
        self._forget(job_id)
        await self._do(lambda: self._files.remove(job_id))

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _forget(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        self._num_bytes -= 0 if job is None else job.num_bytes

    def _drop(self, job_id: str) -> None:
        """Forget a job; its files go before any that are written later."""
        self._forget(job_id)
        self._disk.submit(self._files.remove, job_id)

    def _make_room(self, num_bytes: int, num_jobs: int = 0) -> bool:
        """Drop the oldest that have ended until there is room; returns whether there is."""
        ended = [job.id for job in self._jobs.values() if job.has_ended]
        for job_id in ended:
            if self._has_room(num_bytes, num_jobs):
                break
            self._drop(job_id)
        return self._has_room(num_bytes, num_jobs)

    def _has_room(self, num_bytes: int, num_jobs: int) -> bool:
        fits = self._num_bytes + num_bytes <= self._max_bytes
        return fits and len(self._jobs) + num_jobs <= MAX_JOBS

    def _is_old(self, job: VideoJob) -> bool:
        return job.ended_at is not None and job.ended_at + self.max_age_s <= time.time()

    def _expire(self) -> None:
        """Drop what is too old, and come back when the next one is."""
        for job in list(self._jobs.values()):
            if self._is_old(job):
                self._drop(job.id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [job.ended_at for job in self._jobs.values() if job.ended_at is not None]
        if ends:
            after_s = max(0.0, min(ends) + self.max_age_s - time.time())
            self._timer = asyncio.get_running_loop().call_later(after_s + SLACK_S, self._expire)


def not_stored(error: OSError) -> ApiError:
    """Returns the failure to write a job's files, which the log explains."""
    logger.error("a video cannot be stored: %s", error)
    return ApiError(500, "The video cannot be stored.", code="not_stored")


def not_there(job: VideoJob, error: OSError) -> ApiError:
    """Returns the failure to read a file of a job, which may have been deleted meanwhile."""
    logger.warning("a file of video %s cannot be read: %s", job.id, error)
    message = f"The files of video {job.id} are not there any more."
    return ApiError(404, message, param="video_id", code="video_not_found")
