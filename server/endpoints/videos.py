"""POST /v1/videos/sync: a video in the answer. Ours, not OpenAI's."""

import asyncio
import io
from contextlib import aclosing
from fractions import Fraction
from typing import Annotated
from uuid import uuid4

import av
from fastapi import Request as HttpRequest
from fastapi import Response
from PIL import Image
from pydantic import Field

from omnistage.server.chat.schema import Count, Seed
from omnistage.server.http.fields import RequestFields, warning_headers
from omnistage.server.http.served import check_makes, check_model
from omnistage.server.http.state import held
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.images.schema import MAX_PROMPT, Scale
from omnistage.server.runtime.request import ImageOutput, Request
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.ticket import Ticket

MEDIA_TYPE = "video/mp4"
DEFAULT_FPS = 16
# Of h264 with colours in quarter size, which every player knows.
CODEC, PIXEL_FORMAT = "libx264", "yuv420p"
Side = Annotated[Count, Field(ge=16, le=4096, multiple_of=2)]


class VideoRequest(RequestFields):
    """What a client can say; what the pipeline cannot make is its own refusal."""

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    width: Side | None = None
    height: Side | None = None
    num_frames: Annotated[Count, Field(ge=1, le=1024)] | None = None
    fps: Annotated[Count, Field(ge=1, le=120)] = DEFAULT_FPS
    num_inference_steps: Annotated[Count, Field(ge=1, le=1000)] | None = None
    guidance_scale: Scale | None = None
    seed: Seed | None = None


class Videos:
    """Answers video requests by running them through the graph."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create(self, asked: VideoRequest, http: HttpRequest) -> Response:
        """Validate and admit, then make all frames."""
        graph = self._runtime.graph
        check_model(asked.model, graph.model)
        check_makes("video", graph.outputs, "videos")
        body = asked.model_dump(exclude={"model", "fps", "seed", *(asked.model_extra or {})})
        request = Request(f"video-{uuid4().hex}", ("video",), body, seed=asked.seed)
        ticket = held(http, self._runtime.flights.admit(request.outputs))
        headers = warning_headers(asked.unknown)
        making = self._make(request, asked.fps, ticket)
        return await whole_answer(http, request.id, making, headers, MEDIA_TYPE)

    async def _make(self, request: Request, fps: int, ticket: Ticket) -> bytes:
        frames: list[ImageOutput] = []
        async with aclosing(ticket.run(request)) as outputs:
            async for output in outputs:
                if isinstance(output, ImageOutput) and output.pixels:
                    frames.append(output)
        return await asyncio.to_thread(encode, frames, fps)


def encode(frames: list[ImageOutput], fps: int) -> bytes:
    """An mp4 of frames of even sides."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream(CODEC, rate=Fraction(fps))
        stream.width, stream.height = frames[0].width, frames[0].height
        stream.pix_fmt = PIXEL_FORMAT
        for frame in frames:
            picture = Image.frombuffer("RGB", (frame.width, frame.height), frame.pixels)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    return buffer.getvalue()
