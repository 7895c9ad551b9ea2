"""POST /v1/videos/sync: a video in the answer. Ours, not OpenAI's."""

import asyncio
import io
from dataclasses import dataclass
from fractions import Fraction

import av
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from PIL import Image

from omnistage.server.common.fields import warning_headers
from omnistage.server.endpoints.examples import video_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.caller import HttpCaller
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.tasks.videos import RunningVideo, VideoRequest, run_video

MEDIA_TYPE = "video/mp4"
DEFAULT_FPS = 16
MAX_DENOMINATOR = 1001  # of a rate: that of NTSC
# Of h264 with colours in quarter size, which every player knows.
CODEC, PIXEL_FORMAT = "libx264", "yuv420p"


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


def encode(frames: list[ImageOutput], fps: float) -> bytes:
    """Return an mp4 of frames of even sides, so many per second."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream(CODEC, rate=Fraction(fps).limit_denominator(MAX_DENOMINATOR))
        stream.width, stream.height = frames[0].width, frames[0].height
        stream.pix_fmt = PIXEL_FORMAT
        for frame in frames:
            image = Image.frombuffer("RGB", (frame.width, frame.height), frame.pixels)
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return buffer.getvalue()
