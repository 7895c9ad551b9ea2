"""Gets the pictures to edit, which are in a request or named by it, and decodes them."""

import asyncio
import base64
from collections.abc import Sequence

from fastapi import Request

from omnistage.server.media_check import Medium
from omnistage.server.media_load import MediaLoader
from omnistage.server.pictures import File, InputPictures, read_pictures

Source = File | Medium


async def load_pictures(
    images: Sequence[Source], mask: Source | None, media: MediaLoader, http: Request
) -> InputPictures:
    """The pictures; raises ApiError, also when `http` is overdue, and ClientGone."""
    sources = [*images] if mask is None else [*images, mask]
    await media.load_media([one for one in sources if isinstance(one, Medium)], http)
    return await asyncio.to_thread(_read, images, mask)


def _read(images: Sequence[Source], mask: Source | None) -> InputPictures:
    return read_pictures([_file(image) for image in images], None if mask is None else _file(mask))


def _file(source: Source) -> File:
    if isinstance(source, File):
        return source
    return File(source.place, base64.b64decode(source.encoded))
