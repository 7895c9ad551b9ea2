"""What is written of a video's frames."""

import io

import av
import numpy as np
import pytest
from PIL import Image

from omnistage.server.media.mp4 import SHEET_SIDE, THUMBNAIL_SIDE, encode, spritesheet, thumbnail
from omnistage.server.runtime.request import ImageOutput


def greys(count: int, width: int = 64, height: int = 48) -> list[ImageOutput]:
    """Frames of one grey each, from black towards white."""
    shades = [index * 255 // max(1, count - 1) for index in range(count)]
    return [
        ImageOutput(np.full((height, width, 3), shade, np.uint8).tobytes(), width, height)
        for shade in shades
    ]


def test_an_mp4_has_every_frame_at_its_rate() -> None:
    with av.open(io.BytesIO(encode(greys(5), 29.97))) as container:
        (stream,) = container.streams.video
        assert float(stream.average_rate) == pytest.approx(29.97)
        shades = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(stream)]
    assert np.allclose(shades, [0, 63, 127, 191, 255], atol=4)


def test_a_thumbnail_is_the_first_frame_and_keeps_its_form() -> None:
    with Image.open(io.BytesIO(thumbnail(greys(3, 1024, 512)))) as image:
        assert (image.format, image.size) == ("WEBP", (THUMBNAIL_SIDE, THUMBNAIL_SIDE // 2))
        assert np.asarray(image).mean() < 4


@pytest.mark.parametrize(
    ("count", "columns", "rows", "last"),
    [(1, 1, 1, 0), (3, 3, 1, 255), (7, 5, 2, 255), (25, 5, 5, 255), (100, 5, 5, 247)],
)
def test_a_spritesheet_has_up_to_25_frames_in_order(
    count: int, columns: int, rows: int, last: int
) -> None:
    with Image.open(io.BytesIO(spritesheet(greys(count, 512, 512)))) as sheet:
        assert (sheet.format, sheet.size) == ("JPEG", (columns * SHEET_SIDE, rows * SHEET_SIDE))
        cells = np.asarray(sheet.convert("L")).reshape(rows, SHEET_SIDE, columns, SHEET_SIDE)
    shades = cells.mean(axis=(1, 3)).reshape(-1)[: min(count, 25)]
    assert np.all(np.diff(shades) > 0)
    assert abs(shades[-1] - last) < 4
