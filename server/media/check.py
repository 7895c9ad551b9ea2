"""Looks at the images of a request before any stage does: is it what it says, and not too much.

An image is checked by what its format can be checked by. What is sniffed counts, not what the
client calls it.
"""

import io
import struct

from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.ImageFile import ImageFile

from omnistage.server.common.errors import invalid
from omnistage.server.media.blocks import MAX_FRAMES as MAX_PAGES
from omnistage.server.media.blocks import check_blocks
from omnistage.server.media.unreadable import (
    IMAGE_FORMATS,
    MAX_PIXELS,
    Unreadable,
    reading_image,
)

MAX_ICON_SIDE = 1024
ICON, PNG = b"\0\0\1\0", b"\x89PNG\r\n\x1a\n"


def check_image(data: bytes, place: str) -> None:
    """Raise ApiError for an image whose header or sums are wrong, or that is too large.

    It is not decoded: that takes memory for each of its pixels. May take a while.
    """
    check_blocks(data, place)
    with reading_image(place), opened_image(data) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise invalid(place, f"is {width} x {height}; at most {MAX_PIXELS} pixels")
        image.verify()


def opened_image(data: bytes) -> ImageFile:
    """An image of which only the header is read; raises what Pillow does."""
    if data.startswith(ICON):  # Pillow decodes it at once, whatever its header says
        _check_icon(data)
    image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    if isinstance(image, AvifImageFile) and image.n_frames > MAX_PAGES:
        raise Unreadable(f"it has more than {MAX_PAGES} frames")
    return image


def _check_icon(data: bytes) -> None:
    for place in range(6, min(6 + 16 * data[4], len(data) - 15), 16):
        (start,) = struct.unpack_from("<I", data, place + 12)
        head = data[start : start + 24]
        is_png = head.startswith(PNG)
        sides = struct.unpack(">II", head[16:]) if is_png else struct.unpack("<ii", head[4:12])
        if max(map(abs, sides)) > 2 * MAX_ICON_SIDE:  # a bitmap is twice as high, for its mask
            raise Unreadable(f"it is an icon with a picture of more than {MAX_ICON_SIDE} a side")
