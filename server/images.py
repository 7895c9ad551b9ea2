"""POST /v1/images/generations."""

import asyncio
import io
import re
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Request as HttpRequest
from fastapi import Response
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from omnistage.server.errors import ApiError, invalid, unsupported
from omnistage.server.models import check_model
from omnistage.server.orchestrator import Orchestrator
from omnistage.server.request import ImageOutput, Request
from omnistage.server.schema import Count, Flag, Number, Seed
from omnistage.server.whole_answer import warning_headers, whole_answer

MIN_SIDE, MAX_SIDE = 16, 4096
SIZE = re.compile(r"^([1-9][0-9]{0,4})x([1-9][0-9]{0,4})$")
FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
DEFAULT_COMPRESSION = 100
IGNORED = frozenset({"user", "moderation", "style"})
Side = Annotated[Count, Field(ge=MIN_SIDE, le=MAX_SIDE)]
Scale = Annotated[Number, Field(ge=0, le=100)]


class ImageRequest(BaseModel):
    """OpenAI's fields, and below them ours."""

    model_config = ConfigDict(extra="allow")

    prompt: Annotated[str, Field(min_length=1, max_length=32_000)]
    model: str | None = None
    n: Annotated[Count, Field(ge=1, le=10)] | None = None
    size: str | None = None
    quality: Literal["auto", "low", "medium", "high", "standard", "hd"] | None = None
    background: Literal["auto", "opaque", "transparent"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[Count, Field(ge=0, le=100)] | None = None
    response_format: Literal["b64_json", "url"] | None = None
    stream: Flag | None = None
    partial_images: Annotated[Count, Field(ge=0, le=3)] | None = None
    negative_prompt: Annotated[str, Field(max_length=32_000)] | None = None
    width: Side | None = None
    height: Side | None = None
    num_inference_steps: Annotated[Count, Field(ge=1, le=1000)] | None = None
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None
    seed: Seed | None = None


class Images:
    """Answers image requests by running them through the graph."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator

    async def create(self, asked: ImageRequest, http: HttpRequest) -> Response:
        """Validate and admit, then make all pictures."""
        request = self._request(asked)
        self._orchestrator.admit(request.outputs)
        headers = warning_headers(sorted((asked.model_extra or {}).keys() - IGNORED))
        return await whole_answer(http, request.id, self._answer(asked, request), headers)

    def _request(self, asked: ImageRequest) -> Request:
        graph = self._orchestrator.graph
        check_model(asked.model, graph.model)
        if "image" not in graph.outputs:
            makes = ", ".join(sorted(graph.outputs))
            raise ApiError(
                400, f"This model makes no images; it makes {makes}.", code="unsupported_model"
            )
        for name, is_asked in (
            ("stream", asked.stream),
            ("response_format", asked.response_format == "url"),
            ("background", asked.background == "transparent"),
        ):
            if is_asked:
                raise unsupported(name, f"{name} {getattr(asked, name)!r}")
        if asked.output_compression is not None and (asked.output_format or "png") == "png":
            raise invalid("output_compression", "is for jpeg and webp")
        width, height = self._size(asked)
        return Request(
            id=f"img-{uuid4().hex}",
            outputs=("image",),
            body={
                "prompt": asked.prompt,
                "n": asked.n or 1,
                "negative_prompt": asked.negative_prompt,
                "width": width,
                "height": height,
                "num_inference_steps": asked.num_inference_steps,
                "guidance_scale": asked.guidance_scale,
                "true_cfg_scale": asked.true_cfg_scale,
            },
            seed=asked.seed,
        )

    def _size(self, asked: ImageRequest) -> tuple[int | None, int | None]:
        if asked.size in (None, "auto"):
            return asked.width, asked.height
        if asked.width is not None or asked.height is not None:
            raise invalid("size", "says the same as width and height: give one of them")
        found = SIZE.match(asked.size or "")
        if found is None:
            raise invalid("size", 'must be "auto" or WIDTHxHEIGHT, such as 1024x1024')
        width, height = int(found[1]), int(found[2])
        if not all(MIN_SIDE <= side <= MAX_SIDE for side in (width, height)):
            raise invalid("size", f"must have sides of {MIN_SIDE} to {MAX_SIDE}")
        return width, height

    async def _answer(self, asked: ImageRequest, request: Request) -> Mapping[str, Any]:
        pictures: list[ImageOutput] = []
        async with aclosing(self._orchestrator.run(request)) as outputs:
            async for output in outputs:
                if isinstance(output, ImageOutput) and output.pixels:
                    pictures.append(output)
        form = asked.output_format or "png"
        quality = (
            DEFAULT_COMPRESSION if asked.output_compression is None else asked.output_compression
        )
        encoded = [await asyncio.to_thread(encode, one, form, quality) for one in pictures]
        first = pictures[0]
        return {
            "created": int(time.time()),
            "background": "opaque",
            "output_format": form,
            "quality": asked.quality if asked.quality in ("low", "medium", "high") else "high",
            "size": f"{first.width}x{first.height}",
            "data": [{"b64_json": data} for data in encoded],
        }


def encode(picture: ImageOutput, form: str, quality: int) -> bytes:
    """A picture as a file."""
    image = Image.frombuffer("RGB", (picture.width, picture.height), picture.pixels)
    buffer = io.BytesIO()
    image.save(buffer, FORMATS[form], **({} if form == "png" else {"quality": quality}))
    return buffer.getvalue()
