"""Pictures, from the fields of /v1/images to the pieces of their answer."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from typing import Any

from omnistage.server.errors import unsupported
from omnistage.server.http.fields import parse
from omnistage.server.http.served import check_model
from omnistage.server.images.schema import IMAGE_ONLY, EditRequest, ImageRequest
from omnistage.server.images.usage import images_usage
from omnistage.server.media.image_load import Source, read_sources
from omnistage.server.media.images import InputImages
from omnistage.server.media.medium import Medium
from omnistage.server.offline.content import source_of
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.offline.outputs import (
    Answer,
    Choice,
    Picture,
    Piece,
    Preview,
    Progress,
    Usage,
    picture_of,
    stamps_of,
)
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.tasks.images import check_draws
from omnistage.server.trace import current_trace

OF_FILES = ("output_format", "output_compression", "response_format")


async def pictures(
    engine: Engine, fields: Mapping[str, Any], images: Sequence[Any], mask: Any
) -> Pieces:
    """Make pictures of words, or of pictures and words."""
    for name in OF_FILES:
        if fields.get(name) is not None:
            raise unsupported(name, f"{name}: pictures are Pillow's, so it")
    asked = parse(EditRequest if images else ImageRequest, await said(fields))
    check_model(asked.model, engine.graph.served_names)
    check_draws(engine.graph)
    sources, masked = await asyncio.to_thread(sources_of, images, mask)
    warn_of(asked.unknown)
    async with aclosing(made(engine, asked, sources, masked)) as pieces:
        async for piece in pieces:
            yield piece


def sources_of(images: Sequence[Any], mask: Any) -> tuple[list[Source], Source | None]:
    """What is edited, and where; raises ApiError."""
    sources = [source_of(image, f"images[{i}]") for i, image in enumerate(images)]
    return sources, None if mask is None else source_of(mask, "mask")


async def made(
    engine: Engine, asked: ImageRequest, images: Sequence[Source], mask: Source | None
) -> AsyncGenerator[Piece, None]:
    """The steps, previews and pictures of a checked request, and its answer."""
    done: list[ImageOutput] = []
    num_previews = 0
    with engine.runtime.flights.admit(IMAGE_ONLY) as ticket, ExitStack() as kept:
        given = await _given(engine, images, mask, kept)
        request = asked.to_request(given)
        async with aclosing(ticket.run(request)) as outputs:
            async for output in outputs:
                assert isinstance(output, ImageOutput)
                if not output.pixels:
                    yield Progress(output.step, output.num_steps)
                elif output.is_preview:
                    yield Preview(picture_of(output), num_previews)
                    num_previews += 1
                else:
                    yield Picture(picture_of(output), len(done))
                    done.append(output)
    usage = images_usage(done[0].text_tokens, given.sizes, [one.size for one in done])
    yield Answer(
        request.id,
        choices=tuple(Choice() for _ in done),
        images=tuple(map(picture_of, done)),
        usage=Usage.of(usage),
        timeline=stamps_of(current_trace().timeline.to_list()),
    )


async def _given(
    engine: Engine, images: Sequence[Source], mask: Source | None, kept: ExitStack
) -> InputImages:
    sources = [*images] if mask is None else [*images, mask]
    if not sources:
        return InputImages()
    await engine.media.load_all([one for one in sources if isinstance(one, Medium)])
    return await read_sources(images, mask, engine.media, kept)
