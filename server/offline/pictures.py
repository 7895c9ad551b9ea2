"""Pictures, from the fields of /v1/images to the pieces of their answer."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, aclosing

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.common.fields import parse
from omnistage.server.common.served import check_model
from omnistage.server.media.image_load import Source
from omnistage.server.offline.content import ImageLike, source_of
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.tasks.image_task import answer_images, check_draws
from omnistage.server.tasks.images.schema import MAX_CONTROLS, EditRequest, ImageRequest
from omnistage.server.tasks.service import LocalCaller

CONTROL = "control_image"
OF_FILES = ("output_format", "output_compression", "response_format")


async def pictures(
    engine: Engine,
    fields: Mapping[str, object],
    images: Sequence[object],
    mask: object,
    control: ImageLike | Sequence[ImageLike],
) -> Pieces:
    """Make pictures of words, or of pictures and words; `control`: one image, or several."""
    controls = control if isinstance(control, list | tuple) else [control]
    for name in OF_FILES:
        if fields.get(name) is not None:
            raise unsupported(name, f"{name}: pictures are Pillow's, so it")
    asked = parse(EditRequest if images else ImageRequest, await said(fields))
    check_model(asked.model, engine.graph.served_names)
    check_draws(engine.graph)
    if len(controls) > MAX_CONTROLS:
        raise invalid(CONTROL, f"has {len(controls)} images; at most {MAX_CONTROLS}")
    sources = await asyncio.to_thread(sources_of, images, "images")
    shown = await asyncio.to_thread(sources_of, controls, CONTROL)
    masked = None if mask is None else await asyncio.to_thread(source_of, mask, "mask")
    warn_of(asked.unknown)
    with ExitStack() as until:
        caller = LocalCaller(until)
        made = answer_images(engine.service, asked, caller, sources, masked, shown)
        async with aclosing(made) as pieces:
            async for piece in pieces:
                yield piece


def sources_of(images: Sequence[object], name: str) -> list[Source]:
    """Return the images of a field as sources; raises ApiError."""
    return [source_of(image, f"{name}[{i}]") for i, image in enumerate(images)]


def image_fields(
    prompt: str | Sequence[str], fields: Mapping[str, object], is_streamed: bool
) -> dict[str, object]:
    """The fields of a body of /v1/images."""
    words = prompt if isinstance(prompt, str) else list(prompt)
    return {**fields, "prompt": words, "stream": is_streamed}
