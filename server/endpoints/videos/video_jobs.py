"""/v1/videos: OpenAI's jobs that make videos, and their files."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Request as HttpRequest
from fastapi.responses import FileResponse, JSONResponse
from starlette.convertors import StringConvertor, register_url_convertor

from omnistage.server.common.errors import ApiError
from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.examples import job_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.videos.video_answers import DeletedVideo, VideoJobAnswer, VideoList
from omnistage.server.endpoints.videos.video_form import read_video_form, video_body
from omnistage.server.http.openapi import described, errors
from omnistage.server.http.request import HttpCaller
from omnistage.server.http.state import state_of
from omnistage.server.tasks.videos.job import FILES, Variant
from omnistage.server.tasks.videos.schema import VideoRequest

PATH = "/v1/videos"
ONE = f"{PATH}/{{video_id:video}}"
ONE_RANGE = r"(?:\d{1,18}-\d{0,18}|-\d{1,18})"
RANGES = re.compile(rf"bytes=\s*{ONE_RANGE}(?:\s*,\s*{ONE_RANGE})*\s*", re.IGNORECASE)
MEDIA_TYPES = tuple(media_type for _, media_type in FILES.values())


def routes(gateway: Gateway) -> APIRouter:
    """POST and GET /v1/videos, GET and DELETE of one, GET of its files."""
    router, jobs = APIRouter(), VideoJobRequests(gateway)
    body = video_body(VideoRequest, job_examples(gateway.runtime.graph))
    about = described("Create a video job", VideoJobAnswer, body=body)
    router.post(PATH, **about)(jobs.create)
    router.get(PATH, **described("List video jobs", VideoList))(jobs.list)
    router.get(ONE, **described("Retrieve a video job", VideoJobAnswer))(jobs.retrieve)
    router.delete(ONE, **described("Delete a video job", DeletedVideo))(jobs.delete)
    about = described("Download a video", also=MEDIA_TYPES, more=errors(416))
    router.get(f"{ONE}/content", **about)(jobs.content)
    return router


@dataclass(frozen=True, slots=True)
class VideoJobRequests:
    """Creates jobs, and tells of those of a client's key."""

    gateway: Gateway

    async def create(self, http: HttpRequest) -> Response:
        """Queue a video; its job is retrieved until it is completed or has failed."""
        form = await read_video_form(http, VideoRequest)
        jobs, owner = self.gateway.videos, state_of(http.scope).key
        job = await jobs.create(form.asked, form.media, HttpCaller(http), owner)
        return JSONResponse(jobs.card(job), headers=warning_headers(form.asked.unknown))

    async def list(
        self,
        http: HttpRequest,
        limit: Annotated[int, Query(ge=0, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Mapping[str, Any]:
        """The jobs of the client's key, the last first."""
        jobs = self.gateway.videos
        owner = state_of(http.scope).key
        page, has_more = jobs.store.page(owner, limit, after, order == "asc")
        return {
            "object": "list",
            "data": [jobs.card(job) for job in page],
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": has_more,
        }

    async def retrieve(self, video_id: str, http: HttpRequest) -> Mapping[str, Any]:
        """Return one job, whatever has come of it."""
        jobs = self.gateway.videos
        return jobs.card(jobs.store.get(video_id, state_of(http.scope).key))

    async def delete(self, video_id: str, http: HttpRequest) -> Mapping[str, Any]:
        """Delete a job and its files; one that waits or runs is cancelled."""
        await self.gateway.videos.delete(video_id, state_of(http.scope).key)
        return {"id": video_id, "object": "video.deleted", "deleted": True}

    async def content(
        self, video_id: str, http: HttpRequest, variant: Variant = "video"
    ) -> Response:
        """The video, a picture of its first frame, or a sheet of up to 25; ranges are answered."""
        state, store = state_of(http.scope), self.gateway.videos.store
        job = store.get(video_id, state.key)
        if job.status != "completed":
            message = f"Video {video_id} is not completed: its job says what has come of it."
            raise ApiError(404, message, param="video_id", code="video_not_ready")
        name, media_type = FILES[variant]
        file = await store.open(job, name)
        state.at_end.callback(os.close, file)  # it is read on, though it may be deleted meanwhile
        about = os.fstat(file)
        check_range(http, about.st_size)
        path = f"/proc/self/fd/{file}"
        filename = f"{video_id}{os.path.splitext(name)[1]}"
        return FileResponse(path, media_type=media_type, filename=filename, stat_result=about)


def check_range(http: HttpRequest, num_bytes: int) -> None:
    """Raise ApiError for ranges that cannot be answered, in place of Starlette's plain texts."""
    given = http.headers.get("range")
    if given is None or "if-range" in http.headers:
        return
    if RANGES.fullmatch(given) is None:
        message = "The header Range must be bytes=FIRST-LAST, one or several."
        raise ApiError(400, message, param="Range", code="invalid_value")
    for first, last in re.findall(r"(\d*)-(\d*)", given):
        is_behind = (
            int(first) >= num_bytes or int(last or first) < int(first) if first else not int(last)
        )
        if is_behind:
            message = f"The header Range asks for bytes behind the file's {num_bytes}."
            headers = {"Content-Range": f"bytes */{num_bytes}"}
            raise ApiError(416, message, param="Range", code="invalid_value", headers=headers)


class VideoId(StringConvertor):
    """The id of a video: other names below /v1/videos are endpoints, or nothing."""

    regex = "video_[^/]+"


register_url_convertor("video", VideoId())
