"""POST /v1/videos/edits, extensions and {id}/remix: jobs that make a video of another."""

from contextlib import ExitStack
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse, warning_headers
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.media_form import MediaForm
from omnistage.server.endpoints.videos.video_answers import VideoJobAnswer
from omnistage.server.endpoints.videos.video_form import read_video_form, video_body
from omnistage.server.endpoints.videos.video_jobs import ONE, PATH
from omnistage.server.http.openapi import described
from omnistage.server.http.request import HttpCaller
from omnistage.server.http.state import state_of
from omnistage.server.media.images import File
from omnistage.server.tasks.video_sources import NO_ORIGIN, Origin, extension_of, video_source
from omnistage.server.tasks.video_task import check_makes_videos, check_video, video_stage
from omnistage.server.tasks.videos.job import FILES, VideoJob
from omnistage.server.tasks.videos.media import Source, fetched
from omnistage.server.tasks.videos.schema import (
    ExtensionRequest,
    VideoEditRequest,
)


def routes(gateway: Gateway) -> APIRouter:
    """POST of the three."""
    router, edits = APIRouter(), VideoEdits(gateway)
    body = video_body(VideoEditRequest, {}, has_source=True)
    router.post(f"{PATH}/edits", **described("Edit a video", VideoJobAnswer, body=body))(edits.edit)
    body = video_body(ExtensionRequest, {}, has_source=True)
    router.post(f"{PATH}/extensions", **described("Extend a video", VideoJobAnswer, body=body))(
        edits.extend
    )
    about = described("Remix a video", VideoJobAnswer, body=video_body(VideoEditRequest, {}))
    router.post(f"{ONE}/remix", **about)(edits.remix)
    return router


@dataclass(frozen=True, slots=True)
class VideoEdits:
    """Creates jobs that make videos of others, by pipelines that take a video."""

    gateway: Gateway

    async def remix(self, video_id: str, http: HttpRequest) -> Response:
        """Make a completed video anew by another prompt; other fields are those of its job."""
        form = await read_video_form(http, VideoEditRequest)
        if any(one.field == "video" for one in form.media):
            raise invalid("video", "is the one that the path names")
        source, origin = await self._kept(video_id, http, "video_id")
        job = self.gateway.videos.store.get(video_id, state_of(http.scope).key)
        known = VideoEditRequest.model_fields
        fields = {name: value for name, value in job.fields.items() if name in known}
        asked = parse(VideoEditRequest, {**fields, **form.asked.given})
        return await self._create(asked, [video_source(source), *form.media], origin, http, form)

    async def edit(self, http: HttpRequest) -> Response:
        """Change a video, kept or given, as a prompt says."""
        form = await read_video_form(http, VideoEditRequest, has_source=True)
        if form.source is None:
            _check_given(form)
            return await self._create(form.asked, form.media, NO_ORIGIN, http, form)
        source, origin = await self._kept(form.source, http, "video.id")
        sources = [video_source(source), *form.media]
        return await self._create(form.asked, sources, origin, http, form)

    async def extend(self, http: HttpRequest) -> Response:
        """Go on with a video, kept or given, for `seconds` more."""
        form = await read_video_form(http, ExtensionRequest, has_source=True)
        others = [one for one in form.media if one.field != "video"]
        check_makes_videos(self.gateway, form.asked.model)
        needed = video_stage(self.gateway).reading.needed  # the video brings it
        check_video(self.gateway, form.asked, [*needed, *(one.field for one in others)])
        caller = HttpCaller(http)
        if form.source is None:
            _check_given(form)
            given = [one for one in form.media if one.field == "video"]
            (video,) = await caller.wait(fetched(given, self.gateway.media))
            source, origin = video.file, NO_ORIGIN
        else:
            source, origin = await self._kept(form.source, http, "video.id")
        with ExitStack() as until:
            extending = extension_of(self.gateway, form.asked, source, origin, until)
            extension = await caller.wait(extending)
        sources = [*extension.sources, *others]
        return await self._create(extension.fields, sources, extension.origin, http, form)

    async def _kept(self, video_id: str, http: HttpRequest, param: str) -> tuple[File, Origin]:
        """Return the file of a completed video of the client's; raises ApiError."""
        store = self.gateway.videos.store
        job = store.get(video_id, state_of(http.scope).key)
        if job.status != "completed":
            raise invalid(param, "is the id of a video that is not completed")
        data = await store.read(job, FILES["video"][0])
        return File("video", data), Origin(job.id, job.fps)

    async def _create(
        self,
        asked: VideoEditRequest,
        sources: list[Source],
        origin: Origin,
        http: HttpRequest,
        form: MediaForm[VideoEditRequest],
    ) -> Response:
        jobs, owner = self.gateway.videos, state_of(http.scope).key
        job: VideoJob = await jobs.create(asked, sources, HttpCaller(http), owner, origin)
        return JSONResponse(jobs.card(job), headers=warning_headers(form.asked.unknown))


def _check_given(form: MediaForm[VideoEditRequest]) -> None:
    if not any(one.field == "video" for one in form.media):
        raise invalid("video", "is missing: a file, a URL, or an object with the id of a video")
