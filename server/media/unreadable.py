"""Files that cannot be read, and why, in words for those who sent them.

Readers of files tell their own insides: numbers of FFmpeg, blocks of PNG, codecs of Python.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from omnistage.server.common.errors import invalid

# What Pillow's readers raise over bytes that are not what they take them for.
BROKEN = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, ArithmeticError),
    *(MemoryError, struct.error, Image.DecompressionBombError),
)
# Read by Pillow itself: others start programs (EPS) or are no images (PDF).
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM", "ICO")
MAX_PIXELS = 64_000_000


class Unreadable(ValueError):
    """A file that is refused; its text says why, for the client."""


@contextmanager
def reading_image(place: str) -> Iterator[None]:
    """Turn what Pillow raises inside into an ApiError that names the image's place."""
    try:
        yield
    except BROKEN as error:
        raise invalid(place, f"cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return f"it is no image of a known format ({', '.join(IMAGE_FORMATS)})"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MAX_PIXELS} pixels"
    return "it is broken, or ends too early"
