"""Gets the images to edit, which are in a request or named by it, and decodes them."""

import base64
from collections.abc import Sequence
from contextlib import ExitStack

from fastapi import Request

from omnistage.server.http.deadline import within_deadline
from omnistage.server.http.disconnect import unless_gone
from omnistage.server.http.state import state_of
from omnistage.server.media.images import File, InputImages, image_bytes, read_images
from omnistage.server.media.incoming import BASE_BYTES
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium

Source = File | Medium


async def load_images(
    images: Sequence[Source], mask: Source | None, media: MediaLoader, http: Request
) -> InputImages:
    """The images; raises ApiError, also when `http` is overdue, and ClientGone.

    The room that they take is kept until `http` has its answer.
    """
    sources = [*images] if mask is None else [*images, mask]
    if not sources:
        return InputImages()
    await media.load_media([one for one in sources if isinstance(one, Medium)], http)
    async with within_deadline(http.scope):
        until = state_of(http.scope).at_end
        return await unless_gone(http.receive, read_sources(images, mask, media, until))


async def read_sources(
    images: Sequence[Source], mask: Source | None, media: MediaLoader, until: ExitStack
) -> InputImages:
    """The images, none of which is elsewhere; their room is taken until `until` ends."""
    room, sources = media.room, [*images] if mask is None else [*images, mask]
    size = sum(len(one.data if isinstance(one, File) else one.encoded) for one in sources)
    files = await room.run(BASE_BYTES + size, lambda: [_file(one) for one in sources])
    num_bytes, num_kept = await room.run(BASE_BYTES, lambda: image_bytes(files))
    masks = files[len(images) :]
    work = lambda: read_images(files[: len(images)], masks[0] if masks else None)  # noqa: E731
    return await room.run(num_bytes, work, until, num_kept)


def _file(source: Source) -> File:
    if isinstance(source, File):
        return source
    return File(source.place, base64.b64decode(source.encoded))
