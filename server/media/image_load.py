"""Gets the images to edit, which are in a request or named by it, and decodes them."""

import base64
from collections.abc import Sequence
from contextlib import ExitStack

from omnistage.server.media.images import File, InputImages, image_bytes, read_images
from omnistage.server.media.incoming import BASE_BYTES
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium

Source = File | Medium


async def load_images(
    images: Sequence[Source],
    mask: Source | None,
    media: MediaLoader,
    until: ExitStack,
    controls: Sequence[Source] = (),
) -> InputImages:
    """The images, fetched and decoded; the room that they take is kept until `until` ends.

    Raises ApiError.
    """
    sources = [*images, *controls] if mask is None else [*images, *controls, mask]
    await media.load_all([one for one in sources if isinstance(one, Medium)])
    room = media.room
    size = sum(len(one.data if isinstance(one, File) else one.encoded) for one in sources)
    files = await room.run(BASE_BYTES + size, lambda: [_file(one) for one in sources])
    num_bytes, num_kept = await room.run(BASE_BYTES, lambda: image_bytes(files))
    masked = None if mask is None else files.pop()
    first, others = files[: len(images)], files[len(images) :]
    work = lambda: read_images(first, masked, others)  # noqa: E731
    return await room.run(num_bytes, work, until, lambda _: num_kept)


def _file(source: Source) -> File:
    if isinstance(source, File):
        return source
    return File(source.place, base64.b64decode(source.encoded))
