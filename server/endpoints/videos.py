"""POST /v1/videos/sync: a video in the answer. Ours, not OpenAI's."""

import asyncio
import io
from contextlib import aclosing
from dataclasses import dataclass
from fractions import Fraction
from uuid import uuid4

import av
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from PIL import Image

from omnistage.server.endpoints.examples import video_examples
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.fields import warning_headers
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.http.openapi import described, json_examples
from omnistage.server.http.served import check_model
from omnistage.server.http.state import held
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.runtime.request import ImageOutput, Request
from omnistage.server.runtime.ticket import Ticket
from omnistage.server.tasks.images import check_draws
from omnistage.server.tasks.video_fields import VideoRequest

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
        graph = self.gateway.runtime.graph
        check_model(asked.model, graph.served_names)
        check_draws(graph, "video", "videos")
        body = asked.model_dump(exclude={"model", "seed", *(asked.model_extra or {})})
        request = Request(f"video-{uuid4().hex}", ("video",), body, seed=asked.seed)
        ticket = held(http, self.gateway.runtime.flights.admit(request.outputs))
        headers = warning_headers(asked.unknown)
        making = self._make(request, asked.fps, ticket)
        return await whole_answer(http, request.id, making, headers, MEDIA_TYPE)

    async def _make(self, request: Request, fps: int | None, ticket: Ticket) -> bytes:
        frames: list[ImageOutput] = []
        async with aclosing(ticket.run(request)) as outputs:
            async for output in outputs:
                if isinstance(output, ImageOutput) and output.pixels:
                    frames.append(output)
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
