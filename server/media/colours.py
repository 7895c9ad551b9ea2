"""Colours of image files: every mode and depth in 8 bits, and what is transparent over white.

Pillow clips samples of more than 8 bits, and so does vLLM, which reads a chat's images with it: an
image of 16 bits would be white. Whoever reads an image reads it with `decoded`; a file whose image
is not `is_plain` is written anew before a stage gets it.
"""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from omnistage.server.media.unreadable import Unreadable

# Modes of at most 8 bits, of which Pillow and vLLM make the same colours as is done here.
PLAIN = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB")
KEY_BITS = {"L;2": 2, "L;4": 4, "RGB;16B": 16}  # by Pillow's names of a PNG's samples
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
WITH_ALPHA = {"La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
SLOW = ("ppm", "ppm_plain")  # Pillow's decoders in Python: a microsecond for each value
COMMENT, NUMBERS = re.compile(rb"#[^\r\n]*"), re.compile(rb"[0-9\s]*")
BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF
WHITE_IS_ZERO, SIGNED = 0, 2
WHITE = (255, 255, 255)

Values = npt.NDArray[np.uint16]


def is_plain(image: ImageFile) -> bool:
    """Returns whether readers that know Pillow's conversions alone see the colours of an opened
    file.
    """
    if image.mode not in PLAIN or _is_slow(image) or _is_signed(image):
        return False
    has_key = "transparency" in image.info
    return not has_key or (image.mode != "RGB" and _key_bits(image) is None)


def decoded(image: ImageFile) -> Image.Image:
    """An opened file's image upright, in a mode that PNG has; the upper 8 bits of deeper ones.

    Raises Unreadable for samples without a defined white, and what Pillow raises.
    """
    if _is_signed(image) or image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise Unreadable("its samples are signed, of 32 bits or floats; send 8 or 16 bits")
    if _is_slow(image):
        return _netpbm(image)
    if image.mode.startswith("I"):
        return _upper_bits(image)
    key_bits = _key_bits(image)
    turned = ImageOps.exif_transpose(image)
    if key_bits is not None and "transparency" in turned.info:
        turned.info["transparency"] = _scaled(turned.info["transparency"], key_bits)
    if turned.mode == "RGB" and "transparency" in turned.info:  # which vLLM does not look at
        turned = turned.convert("RGBA")
    return as_png_has(turned)


def as_png_has(image: Image.Image) -> Image.Image:
    """The image in a mode that PNG has; raises Unreadable for one of more than 8 bits."""
    if image.mode in PNG_MODES:
        return image
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image).astype(np.uint16), image.info.get("transparency"))
    if image.mode in ("I", "F"):
        raise Unreadable(f"has samples of mode {image.mode}, whose white is not defined")
    return image.convert(WITH_ALPHA.get(image.mode, "RGB"))


def rgb_of(image: Image.Image) -> Image.Image:
    """A decoded image in RGB; what is transparent is over white."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    pixels = image.convert("RGBA")
    over = Image.new("RGB", image.size, WHITE)
    over.paste(pixels, mask=pixels.getchannel("A"))
    return over


def _is_slow(image: ImageFile) -> bool:
    """Returns whether Pillow reads a file that is not loaded yet number by number."""
    return image.mode != "1" and bool(image.tile) and image.tile[0].codec_name in SLOW


def _is_signed(image: ImageFile) -> bool:
    return SIGNED in _tag(image, SAMPLE_FORMAT)


def _tag(image: Image.Image, tag: int) -> tuple[int, ...]:
    """The values of a tag of a TIFF; none where it is not there, and of other files."""
    found = image.tag_v2.get(tag, ()) if isinstance(image, TiffImageFile) else ()
    return found if isinstance(found, tuple) else (found,)


def _key_bits(image: Image.Image) -> int | None:
    """The depth of a PNG's transparent colour, where its pixels are read at another; before load.

    Pillow keeps the colour at the file's depth.
    """
    if not isinstance(image, PngImageFile) or not image.tile:
        return None
    return KEY_BITS.get(str(image.tile[0].args))


def _scaled(key: int | tuple[int, ...], bits: int) -> int | tuple[int, ...]:
    if isinstance(key, tuple):
        return tuple(one >> bits - 8 for one in key)
    return key * 255 // ((1 << bits) - 1)


def _upper_bits(image: ImageFile) -> Image.Image:
    """Grey of 12 or 16 bits, as in PNG, TIFF and PPM."""
    is_short, is_inverted = 12 in _tag(image, BITS), WHITE_IS_ZERO in _tag(image, PHOTOMETRIC)
    values = np.asarray(ImageOps.exif_transpose(image)).astype(np.uint16)
    if is_short:
        values <<= 4
    if is_inverted:
        values = ~values
    return _grey(values, image.info.get("transparency"))


def _grey(values: Values, key: int | None) -> Image.Image:
    """Values [height, width] of 16 bits as grey, transparent where they are the key."""
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    if key is not None:
        grey.putalpha(Image.fromarray(np.where(values == key, np.uint8(0), np.uint8(255))))
    return grey


def _netpbm(image: ImageFile) -> Image.Image:
    """A PGM or PPM in text, or whose largest value is not 255; raises Unreadable."""
    (name, _, offset, arguments), file = image.tile[0], image.fp
    assert file is not None
    assert isinstance(arguments, tuple)
    mode, largest = arguments
    num_values = image.width * image.height * len(mode)
    file.seek(offset)
    if name == "ppm":
        size = 2 if largest > 255 else 1
        values = np.frombuffer(file.read(num_values * size), f">u{size}")
    else:
        values = _numbers(file.read(), num_values)
    if len(values) != num_values:
        raise Unreadable("it ends too early")
    if values.max(initial=0) > largest:
        raise Unreadable(f"it has values above {largest}, its largest")
    depth = 8 if largest <= 255 else 16
    scaled = np.round(np.arange(largest + 1) * ((1 << depth) - 1) / largest).astype(np.uint16)
    pixels = (scaled >> depth - 8).astype(np.uint8)[values.astype(np.uint16, copy=False)]
    shape = (image.height, image.width, len(mode))
    return Image.fromarray(pixels.reshape(shape[: 2 if mode == "L" else 3]))


def _numbers(text: bytes, most: int) -> npt.NDArray[Any]:
    """The first `most` decimal numbers of a text, or as many as there are."""
    found = NUMBERS.match(COMMENT.sub(b" ", text))
    # Without a count: where one is given, numbers that are missing are whatever memory has.
    return np.fromstring(found[0].strip() if found else b"", np.float64, sep=" ")[:most]
