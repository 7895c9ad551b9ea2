"""Counts the frames, pages and blocks of an image's file, before a decoder goes through them all.

Decoders of still images look at each block of a file one by one: at millions of a few bytes for
seconds. Here no more are looked at than are allowed.
"""

import struct
from collections.abc import Callable, Iterator, Mapping

from omnistage.server.common.errors import invalid

MAX_FRAMES = 1024  # of a GIF, or pages of a TIFF
MAX_BLOCKS = 1 << 17  # of any file: one of 32 MiB, in the blocks of 255 bytes that a GIF has

FRAME, BLOCK = True, False
Blocks = Iterator[bool]


def check_blocks(data: bytes, place: str) -> None:
    """Raise ApiError for a file with too many of them; what is broken is the decoder's business."""
    walk = next((walk for mark, walk in WALKS.items() if data.startswith(mark)), None)
    if walk is None:
        return
    num_frames = num_blocks = 0
    try:
        for is_frame in walk(data):
            num_blocks += 1
            num_frames += is_frame
            if num_frames > MAX_FRAMES:
                raise invalid(place, f"has more than {MAX_FRAMES} frames or pages")
            if num_blocks > MAX_BLOCKS:
                raise invalid(place, f"is in more than {MAX_BLOCKS} blocks")
    except (IndexError, struct.error):  # it ends too early
        return


def _gif(data: bytes) -> Blocks:
    at = 13 + _num_colours(data[10])
    while (kind := data[at]) != 0x3B:
        if kind == 0x2C:
            yield FRAME
            at += 11 + _num_colours(data[at + 9])
        else:
            at += 2
        while size := data[at]:
            yield BLOCK
            at += 1 + size
        at += 1


def _num_colours(flags: int) -> int:
    """Bytes of a table of colours, which a flag says is there."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _tiff(order: str) -> Callable[[bytes], Blocks]:
    def walk(data: bytes) -> Blocks:
        (at,) = struct.unpack_from(f"{order}I", data, 4)
        while at:
            yield FRAME
            (num_entries,) = struct.unpack_from(f"{order}H", data, at)
            for _ in range(num_entries):
                yield BLOCK
            (at,) = struct.unpack_from(f"{order}I", data, at + 2 + 12 * num_entries)

    return walk


def _big_tiff(order: str) -> Callable[[bytes], Blocks]:
    def walk(data: bytes) -> Blocks:
        (at,) = struct.unpack_from(f"{order}Q", data, 8)
        while at:
            yield FRAME
            (num_entries,) = struct.unpack_from(f"{order}Q", data, at)
            for _ in range(num_entries):
                yield BLOCK
            (at,) = struct.unpack_from(f"{order}Q", data, at + 8 + 20 * num_entries)

    return walk


def _png(data: bytes) -> Blocks:
    at = 8
    while at < len(data):
        yield BLOCK
        (size,) = struct.unpack_from(">I", data, at)
        at += 12 + size


def _jpeg(data: bytes) -> Blocks:
    """Segments up to the first scan; decoders look at each byte between two."""
    at = 2
    while data[at + 1] != 0xDA:
        yield BLOCK
        if data[at] != 0xFF or data[at + 1] in (0x00, 0xFF):
            at += 1
            continue
        (size,) = struct.unpack_from(">H", data, at + 2)
        at += 2 + size


WALKS: Mapping[bytes, Callable[[bytes], Blocks]] = {
    b"GIF8": _gif,
    b"II*\0": _tiff("<"),
    b"MM\0*": _tiff(">"),
    b"II+\0": _big_tiff("<"),
    b"MM\0+": _big_tiff(">"),
    b"\x89PNG": _png,
    b"\xff\xd8": _jpeg,
}
