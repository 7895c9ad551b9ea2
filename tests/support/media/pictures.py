"""Pictures as clients send and get them."""

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(width: int, height: int, colour: Any = (10, 20, 30), mode: str = "RGB") -> bytes:
    return file_of(Image.new(mode, (width, height), colour))


def mask_png(width: int, height: int) -> bytes:
    """The left half is transparent."""
    mask = Image.new("RGBA", (width, height), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, width // 2, height))
    return file_of(mask)


def pixels_of(data: str | bytes) -> npt.NDArray[np.uint8]:
    """From base64 or a file."""
    file = base64.b64decode(data) if isinstance(data, str) else data
    return np.asarray(Image.open(io.BytesIO(file)))
