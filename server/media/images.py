"""Images as files: read what clients send, write what stages make."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from omnistage.server.common.errors import invalid
from omnistage.server.media.blocks import check_blocks
from omnistage.server.media.check import check_image, opened_image
from omnistage.server.media.colours import decoded, is_plain, rgb_of
from omnistage.server.media.unreadable import BROKEN, MAX_PIXELS, reading_image
from omnistage.server.runtime.request import ImageOutput

MAX_INPUT_PIXELS = 16_777_216  # of all images of a request
# While one is decoded: the decoder's own, and a few copies of four bytes for each pixel.
BYTES_PER_PIXEL, BYTES_PER_READ_PIXEL = 28, 3
BYTES_PER_LOADED_PIXEL = 16  # as it is in its file: the pixels, and a decoder's coefficients
FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
CONTENT_TYPES = tuple(f"image/{form}" for form in FORMATS)
PNG_LEVEL = 1  # of 9: a third of the time of Pillow's 6 for files that are a sixth larger
MODES = {3: "RGB", 4: "RGBA"}

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoding:
    """The kind of file that a client wants; `compression` is 0 (small) to 100 (good)."""

    form: str = "png"
    compression: int = 100

    def encode(self, picture: ImageOutput) -> bytes:
        """An image as a file; JPEG has no alpha channel."""
        size = (picture.width, picture.height)
        image = Image.frombuffer(MODES[picture.num_channels], size, picture.pixels)
        is_png = self.form == "png"
        options = {"compress_level": PNG_LEVEL} if is_png else {"quality": self.compression}
        if self.form == "jpeg":
            image = image.convert("RGB")
        buffer = io.BytesIO()
        image.save(buffer, FORMATS[self.form], **options)
        return buffer.getvalue()

    @property
    def content_type(self) -> str:
        """Returns its media type."""
        return f"image/{self.form}"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a client, and the field to blame for it."""

    param: str
    data: bytes


@dataclass(frozen=True, slots=True)
class InputImages:
    """Images [height, width, 3] to edit; in the mask [height, width] 255 is to be repainted.

    `controls`: images that control what is made, such as edges or depths.
    """

    images: tuple[Pixels, ...] = ()
    mask: Pixels | None = None
    controls: tuple[Pixels, ...] = ()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Width and height of each image."""
        return [(image.shape[1], image.shape[0]) for image in (*self.images, *self.controls)]

    @property
    def media(self) -> list[tuple[str, str, Pixels]]:
        """Each medium's field, the name of its tensor, and its pixels."""
        media = [("image", f"image{i}", image) for i, image in enumerate(self.images)]
        media += [("mask", "mask", self.mask)] if self.mask is not None else []
        named = ((f"control_image{i}", one) for i, one in enumerate(self.controls))
        return media + [("control_image", name, one) for name, one in named]


def image_bytes(files: list[File]) -> tuple[int, int]:
    """How much memory `read_images` takes at most, and how much of it for the result."""
    sizes = [width * height for width, height in map(_size, files)]
    read = [min(size, MAX_INPUT_PIXELS) for size in sizes]
    num_read = BYTES_PER_READ_PIXEL * sum(read)
    return num_read + BYTES_PER_PIXEL * max(read, default=0), num_read


def _size(file: File) -> tuple[int, int]:
    try:
        with opened_image(file.data) as image:
            return image.size
    except BROKEN:
        return 0, 0  # reading it says what is wrong


def read_images(
    images: list[File], mask: File | None = None, controls: Sequence[File] = ()
) -> InputImages:
    """Decode what a client sent; raises ApiError. May take a while."""
    left = MAX_INPUT_PIXELS
    read = []
    for file in (*images, *controls):
        image = _opened(file, left)
        left -= image.width * image.height
        read.append(np.asarray(rgb_of(image)))
    masked = None if mask is None else read_mask(mask, read[0])
    return InputImages(tuple(read[: len(images)]), masked, tuple(read[len(images) :]))


def _opened(file: File, max_pixels: int) -> Image.Image:
    check_blocks(file.data, file.param)
    with reading_image(file.param), opened_image(file.data) as image:
        width, height = image.size
        if width * height > max_pixels:
            problem = f"is {width} x {height}; a request has at most {MAX_INPUT_PIXELS} pixels"
            raise invalid(file.param, problem)
        return decoded(image)


def look_at(file: File) -> tuple[bool, int]:
    """Return whether stages read a file as it is, and how much memory decoding it takes.

    Raises ApiError for one whose header or sums are wrong, or that is too large.
    """
    check_image(file.data, file.param)
    with reading_image(file.param), opened_image(file.data) as image:
        plain = is_plain(image)
        return plain, (BYTES_PER_LOADED_PIXEL if plain else BYTES_PER_PIXEL) * math.prod(image.size)


def check_whole(file: File) -> None:
    """Raise ApiError for an image that cannot be decoded to its end; may take a while."""
    with reading_image(file.param), opened_image(file.data) as image:
        image.load()


def as_plain_png(file: File) -> bytes:
    """Return an image as a PNG of 8 bits; raises ApiError. May take a while."""
    buffer = io.BytesIO()
    _opened(file, MAX_PIXELS).save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def read_mask(file: File, image: Pixels) -> Pixels:
    """Decode the mask of an image, 255 where that is to be repainted; raises ApiError."""
    mask = _opened(file, MAX_INPUT_PIXELS)
    height, width, _ = image.shape
    if mask.size != (width, height):
        problem = f"is {mask.width} x {mask.height}, but the first image is {width} x {height}"
        raise invalid(file.param, problem)
    if not mask.has_transparency_data:
        raise invalid(file.param, "has no alpha channel: what is transparent is repainted")
    alpha = np.asarray(mask.convert("RGBA"))[..., 3]
    if alpha.all():
        raise invalid(file.param, "has no fully transparent pixel: nothing would be repainted")
    return np.where(alpha == 0, np.uint8(255), np.uint8(0))
