"""The sizes in which BAGEL reads an image."""

from PIL import Image

MAX_PIXELS = 14 * 14 * 9 * 1024


def resized(image: Image.Image, least: int, most: int, multiple: int) -> Image.Image:
    """Return an image whose sides are multiples of a number, of `least` to `most` pixels.

    Its shape is kept as far as that allows; `most` wins.
    """
    width, height = image.size
    scale = max(min(most / max(width, height), 1.0), least / min(width, height))
    size = _scaled(width, height, scale, multiple)
    if size[0] * size[1] > MAX_PIXELS:
        size = _scaled(*size, MAX_PIXELS / (size[0] * size[1]), multiple)
    if max(size) > most:
        size = _scaled(*size, most / max(size), multiple)
    return image.resize(size, Image.Resampling.BICUBIC)


def _scaled(width: int, height: int, scale: float, multiple: int) -> tuple[int, int]:
    width, height = (
        max(multiple, round(round(side * scale) / multiple) * multiple) for side in (width, height)
    )
    return width, height
