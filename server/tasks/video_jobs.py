"""Videos that are made while nobody waits: a bounded queue of jobs, some of which run at once."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from omnistage.server.common.errors import ApiError, fields_named, internal_error
from omnistage.server.common.trace import Trace, following
from omnistage.server.media.given import GivenFile, read_given
from omnistage.server.media.images import File
from omnistage.server.media.video.mp4 import spritesheet, thumbnail
from omnistage.server.runtime.readiness import stopping
from omnistage.server.tasks.service import Caller, LocalCaller, Service
from omnistage.server.tasks.video_sources import NO_ORIGIN, Origin, following_on
from omnistage.server.tasks.video_task import (
    VIDEO_ONLY,
    MadeVideo,
    VideoPlan,
    check_video,
    run_video,
    video_stage,
)
from omnistage.server.tasks.videos.job import (
    FILES,
    JobError,
    StoredMedium,
    Variant,
    VideoJob,
    seconds_of,
    size_of,
)
from omnistage.server.tasks.videos.job_store import VideoStore
from omnistage.server.tasks.videos.media import Source, fetched
from omnistage.server.tasks.videos.schema import VideoEditRequest

logger = logging.getLogger(__name__)

ID_BYTES = 16
RETRY_S = 10  # of a full queue
BEFORE = "before.mp4"  # of a job that goes on with a video: that
MAX_PROGRESS = 99  # until the file is there


class VideoJobs:
    """The jobs of a server; `max_queue` of them wait or run, `at_once` run.

    A job that finds no place in the server, or a stage that is not ready, waits for it.
    """

    def __init__(self, service: Service, store: VideoStore, max_queue: int, at_once: int) -> None:
        self.store = store
        self._service = service
        self._max_queue = max_queue
        self._turns = asyncio.Semaphore(at_once)
        self._progress: dict[str, int] = {}  # of those that run, in percent
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._num_coming = 0  # whose media are read

    def card(self, job: VideoJob) -> dict[str, Any]:
        """Return a job as clients see it, with its progress."""
        return job.card(self.store.max_age_s, self._progress.get(job.id))

    async def create(
        self,
        fields: VideoEditRequest,
        sources: Sequence[Source],
        caller: Caller,
        owner: str | None,
        origin: Origin = NO_ORIGIN,
    ) -> VideoJob:
        """Check a request whole, its media too, and queue it; raises ApiError."""
        service = self._service
        check_video(service, fields, [one.field for one in sources])
        if service.runtime.flights.is_stopping:
            raise stopping()
        path = [links[0] for links in service.runtime.fleet.open_path(VIDEO_ONLY)]
        if len(self._tasks) + self._num_coming >= self._max_queue:
            raise self._full()
        self._num_coming += 1
        try:
            files = await caller.wait(fetched(sources, service.media))
            with ExitStack() as until:
                given = await caller.wait(read_given(files, service.media.room, until))
                plan = VideoPlan(fields, given, video_stage(service), origin.fps)
                request = plan.request()
                with fields_named(fields.name_of):
                    request.check_work(path)
            job = self._job(plan, request.message.fields, files, owner, origin)
            stored = {one.file: file.file.data for one, file in zip(job.media, files, strict=True)}
            if origin.before is not None:
                stored[BEFORE] = origin.before
            await self.store.add(job, stored)
        finally:
            self._num_coming -= 1
        task = self._tasks[job.id] = asyncio.create_task(self._run(job, fields))
        task.add_done_callback(lambda _: self._forget(job.id))  # also if it never began
        return job

    async def delete(self, job_id: str, owner: str | None) -> None:
        """Forget a job; one that runs, or waits, is cancelled first. Raises ApiError."""
        self.store.get(job_id, owner)
        task = self._tasks.get(job_id)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self.store.delete(job_id)

    def _full(self) -> ApiError:
        message = f"{self._max_queue} videos wait or are made already: ask again later."
        code = "video_queue_full"
        return ApiError(429, message, type="requests", code=code, retry_after_s=RETRY_S)

    def _job(
        self,
        plan: VideoPlan,
        sent: Mapping[str, Any],
        files: Sequence[GivenFile],
        owner: str | None,
        origin: Origin,
    ) -> VideoJob:
        work, fields = plan.stage.work, plan.fields
        num_frames = sent["num_frames"] or work.num_frames
        if num_frames is not None and origin.before is not None:
            num_frames += origin.num_frames - 1  # the last frame is the first of what follows
        media = [
            StoredMedium(one.field, one.kind, one.file.param, f"medium-{index}")
            for index, one in enumerate(files)
        ]
        return VideoJob(
            id=f"video_{secrets.token_hex(ID_BYTES)}",
            owner=owner,
            created_at=time.time(),
            model=fields.model or self._service.runtime.graph.served_name,
            fields=fields.given,
            media=media,
            before=None if origin.before is None else BEFORE,
            size=size_of(sent["width"] or work.width, sent["height"] or work.height),
            seconds=seconds_of(num_frames, plan.fps),
            num_frames=num_frames,
            fps=plan.fps,
            rate=origin.fps,
            remixed_from=origin.video_id,
            num_bytes=sum(len(one.file.data) for one in files) + len(origin.before or b""),
        )

    async def _run(self, job: VideoJob, fields: VideoEditRequest) -> None:
        """Make the video of a job in its turn, and keep how that ended."""
        try:
            with following(Trace(request_id=job.id)):
                async with self._turns:
                    await self._make(job, fields)
        except ApiError as error:
            await self.store.end(job.failed(JobError.of(error)), {})
        except Exception:
            logger.exception("video %s failed", job.id)
            await self.store.end(job.failed(JobError.of(internal_error())), {})

    def _forget(self, job_id: str) -> None:
        self._progress.pop(job_id, None)
        del self._tasks[job_id]

    async def _make(self, job: VideoJob, fields: VideoEditRequest) -> None:
        made = await self._made(job, fields)
        if job.before is not None:
            file = File("video", await self.store.read(job, job.before))
            made = await following_on(file, made, self._service.media.room)
        files = await asyncio.to_thread(_files_of, made)
        num_bytes = sum(map(len, files.values()))
        size, num_frames = made.frames[0].size, len(made.frames)
        await self.store.end(job.completed(size, num_frames, made.fps, num_bytes), files)

    async def _made(self, job: VideoJob, fields: VideoEditRequest) -> MadeVideo:
        sources = [
            Source(one.field, one.kind, File(one.param, await self.store.read(job, one.file)))
            for one in job.media
        ]
        while True:
            opening = self._service.runtime.fleet.openings.next
            with ExitStack() as until:
                caller = LocalCaller(until)
                try:
                    running = await run_video(self._service, fields, caller, sources, job.rate)
                except ApiError as error:
                    if error.status != 503 or self._service.runtime.flights.is_stopping:
                        raise
                else:
                    self._progress[job.id] = 0
                    return await running.made(lambda step, num: self._note(job.id, step, num))
            await opening.wait()

    def _note(self, job_id: str, step: int, num_steps: int) -> None:
        if num_steps:
            self._progress[job_id] = min(MAX_PROGRESS, 100 * step // num_steps)


def _files_of(made: MadeVideo) -> dict[str, bytes]:
    """Write the files of a video; may take a while."""
    written: dict[Variant, bytes] = {
        "video": made.to_mp4(),
        "thumbnail": thumbnail(made.frames),
        "spritesheet": spritesheet(made.frames),
    }
    return {FILES[variant][0]: data for variant, data in written.items()}
