"""POST /v1/videos/sync: a video in the answer. Ours, not OpenAI's."""

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.examples import video_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.videos.video_form import read_video_form, video_body
from omnistage.server.http.openapi import described
from omnistage.server.http.request import HttpCaller
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.media.video.mp4 import MEDIA_TYPE
from omnistage.server.tasks.video_task import RunningVideo, run_video
from omnistage.server.tasks.videos.schema import VideoRequest


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/videos/sync."""
    router = APIRouter()
    body = video_body(VideoRequest, video_examples(gateway.runtime.graph))
    about = described("Create a video", also=(MEDIA_TYPE,), body=body)
    router.post("/v1/videos/sync", **about)(Videos(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class Videos:
    """Answers video requests by running them through the graph."""

    gateway: Gateway

    async def create(self, http: HttpRequest) -> Response:
        """Answer with an mp4 once all of its frames are made."""
        form = await read_video_form(http, VideoRequest)
        running = await run_video(self.gateway, form.asked, HttpCaller(http), form.media)
        headers = warning_headers(form.asked.unknown)
        making = self._make(running)
        return await whole_answer(http, running.request.id, making, headers, MEDIA_TYPE)

    async def _make(self, running: RunningVideo) -> bytes:
        made = await running.made()
        return await asyncio.to_thread(made.to_mp4)
