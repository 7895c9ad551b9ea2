"""POST /v1/videos/sync: a video in the answer. Ours, not OpenAI's."""

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.examples import video_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.caller import HttpCaller
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.media.mp4 import MEDIA_TYPE, encode
from omnistage.server.tasks.videos import RunningVideo, VideoRequest, run_video

DEFAULT_FPS = 16


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/videos/sync."""
    router = APIRouter(route_class=JsonRoute)
    body = json_examples(video_examples(gateway.runtime.graph))
    about = described("Create a video", also=(MEDIA_TYPE,), body=body)
    router.post("/v1/videos/sync", **about)(Videos(gateway).create)
    return router


@dataclass(frozen=True, slots=True)
class Videos:
    """Answers video requests by running them through the graph."""

    gateway: Gateway

    async def create(self, asked: VideoRequest, http: HttpRequest) -> Response:
        """Answer with an mp4 once all of its frames are made."""
        running = await run_video(self.gateway, asked, HttpCaller(http))
        headers = warning_headers(asked.unknown)
        making = self._make(running, asked.fps)
        return await whole_answer(http, running.request.id, making, headers, MEDIA_TYPE)

    async def _make(self, running: RunningVideo, fps: int | None) -> bytes:
        frames = await running.frames()
        rate = fps or frames[0].fps or DEFAULT_FPS
        return await asyncio.to_thread(encode, frames, rate)
