"""How many frames, pages and blocks a picture may have."""

import io
import struct

import pytest
from PIL import Image
from support.hostile.dear_bodies import gif, jpeg, png, tiff

from omnistage.server.common.errors import ApiError
from omnistage.server.media.blocks import MAX_BLOCKS, MAX_FRAMES, check_blocks

ENTRY = struct.pack("<HHII", 65000, 1, 1, 0)
FOR_EVER = b"II*\0" + struct.pack("<IH", 8, 1) + ENTRY + struct.pack("<I", 8)
BIG_FOR_EVER = b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 0) + struct.pack("<Q", 16)
TINY_PIECES = gif(1)[:19] + b"\x21\xfe" + b"\x01x" * (MAX_BLOCKS + 1) + b"\0" + gif(1)[19:]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gif(MAX_FRAMES + 1), "1024 frames"),
        (tiff(MAX_FRAMES + 1), "1024 frames"),
        (FOR_EVER, "1024 frames"),
        (BIG_FOR_EVER, "1024 frames"),
        (TINY_PIECES, "131072 blocks"),
        (png(MAX_BLOCKS), "131072 blocks"),
        (jpeg(MAX_BLOCKS + 1), "131072 blocks"),
    ],
)
def test_a_picture_of_too_many_pieces_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        check_blocks(data, "the place")
    assert caught.value.param == "the place"


@pytest.mark.parametrize(
    "data", [gif(MAX_FRAMES), tiff(MAX_FRAMES), png(1000), jpeg(1000), gif(3)[:40], b"", b"GIF8"]
)
def test_others_pass(data: bytes) -> None:
    check_blocks(data, "the place")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"])
def test_a_large_picture_passes(form: str) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((2000, 2000), 99).convert("RGB").save(buffer, form)
    check_blocks(buffer.getvalue(), "the place")
