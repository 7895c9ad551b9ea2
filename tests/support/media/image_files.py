"""Image files of every mode and depth, made byte by byte, and the colours that a model gets."""

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.ImageFile import ImageFile as PillowFile
from support.media.pictures import file_of

Colour = tuple[int, int, int]
COLOUR, RED, BLUE = (100, 150, 200), (255, 0, 0), (0, 0, 255)
WHITE = (255, 255, 255)
HIGH, LOW = 20_000, 45_000  # of 16 bits: 78 and 175 of 8
SIDE = 4
TURN_LEFT = 6  # EXIF: the file's left is the image's top
ORIENTATION = 0x0112
PNG_GREY, PNG_RGB, PNG_PALETTE, PNG_GREY_ALPHA, PNG_RGBA = 0, 2, 3, 4, 6
WHITE_IS_0, BLACK_IS_0, TIFF_RGB, TIFF_LAB = 0, 1, 2, 8
UNSIGNED, SIGNED, FLOAT = 1, 2, 3
PREMULTIPLIED, ALPHA = 1, 2


@dataclass(frozen=True)
class ImageFile:
    """A file, its pixels [height, width, 3] as a model gets them, and how far they may be off."""

    name: str
    data: bytes
    pixels: npt.NDArray[np.uint8]
    error: int = 0


def even(name: str, data: bytes, colour: Colour | int, error: int = 0) -> ImageFile:
    """A file of one colour, as all that are made here."""
    pixels = np.full((SIDE, SIDE, 3), colour, np.uint8)
    return ImageFile(name, data, pixels, error)


def png(
    depth: int, kind: int, pixel: bytes, key: bytes = b"", palette: bytes = b"", num_a_byte: int = 1
) -> bytes:
    """A PNG of one colour; a pixel's bytes stand for `num_a_byte` pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", SIDE, SIDE, depth, kind, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"PLTE", palette), (b"tRNS", key)]
    rows = (b"\0" + pixel * -(-SIDE // num_a_byte)) * SIDE
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(name, data) for name, data in chunks if data or name == b"IEND"
    )


def tiff(
    order: str, photometric: int, samples: str, *values: Any, form: int = UNSIGNED, **more: Any
) -> bytes:
    """A TIFF of one colour without compression; `samples` is the format of a pixel in `struct`.

    `more`: `extra`, what its last sample is; `bits` if they are not those of the format, and then
    `row`.
    """
    row = more.get("row") or struct.pack(order + samples, *values) * SIDE
    data = row * SIDE
    size = more.get("bits") or 8 * struct.calcsize("=" + samples[0])
    num = len(samples)
    tags: dict[int, tuple[str, list[int]]] = {
        256: ("I", [SIDE]),
        257: ("I", [SIDE]),
        258: ("H", [size] * num),
        259: ("H", [1]),
        262: ("H", [photometric]),
        273: ("I", [8]),
        277: ("H", [num]),
        278: ("I", [SIDE]),
        279: ("I", [len(data)]),
    }
    if "extra" in more:
        tags[338] = ("H", [more["extra"]])
    tags[339] = ("H", [form] * num)
    start = 8 + len(data)
    end = start + 2 + 12 * len(tags) + 4
    entries = after = b""
    for tag, (kind, numbers) in tags.items():
        packed = struct.pack(f"{order}{len(numbers)}{kind}", *numbers)
        if len(packed) > 4:
            after += packed
            packed = struct.pack(f"{order}I", end + len(after) - len(packed))
        kinds = {"H": 3, "I": 4}
        entries += struct.pack(f"{order}HHI", tag, kinds[kind], len(numbers)) + packed.ljust(
            4, b"\0"
        )
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, start)
    return head + data + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + after


def netpbm(kind: str, largest: int | str, pixel: bytes | str) -> bytes:
    """A file of one colour; pixels of a text are words."""
    head = f"P{kind} {SIDE} {SIDE}" + (f" {largest}" if largest else "") + "\n"
    if isinstance(pixel, str):
        return f"{head}# a comment 7 8 9\n{(pixel + ' ') * SIDE * SIDE}\n".encode()
    return head.encode() + pixel * SIDE * SIDE


def cmyk_jpeg(has_marker: bool) -> bytes:
    """A JPEG of four inks, which are inverted, with Adobe's marker that says so or without it."""
    data = plain("CMYK", (155, 105, 55, 0), "JPEG", quality=100)
    at = data.index(b"\xff\xee\0\x0eAdobe")
    return data if has_marker else data[:at] + data[at + 16 :]


def turned(form: str, image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = TURN_LEFT
    return file_of(image, form, exif=exif)


def big(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


def bmp(bits: int, pixel: bytes, masks: tuple[int, ...] = ()) -> bytes:
    """A BMP of one colour whose masks say where the colours of a pixel are."""
    row = (pixel * SIDE).ljust(-(-len(pixel) * SIDE // 4) * 4, b"\0")
    fields = struct.pack(f"<{len(masks)}I", *masks)
    start = 14 + 40 + len(fields)
    compression = 6 if len(masks) == 4 else 3 if masks else 0
    size = len(row) * SIDE
    info = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, bits, compression, size, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + size, 0, 0, start) + info + fields + row * SIDE


def plain(mode: str, colour: Any, form: str, **options: Any) -> bytes:
    return file_of(Image.new(mode, (SIDE, SIDE), colour), form, **options)


def two_colours(mode: str = "P", pixel: Any = 1) -> Image.Image:
    image = Image.new(mode, (SIDE, SIDE), pixel)
    image.putpalette([*RED, *COLOUR])
    return image


HALVES = Image.new("RGB", (2, 1))
HALVES.putpixel((0, 0), RED)
HALVES.putpixel((1, 0), BLUE)
# Over white: 100, 150 and 200 at half (128 of 255) are 177, 202 and 227.
HALF = (177, 202, 227)
PALETTE = bytes([*RED, *COLOUR])

FILES = [
    even("1: a PNG", plain("1", 1, "PNG"), WHITE),
    even("1: with a transparent black", png(1, PNG_GREY, b"\0", big(0), num_a_byte=8), WHITE),
    even("1: a TIFF", plain("1", 0, "TIFF"), 0),
    even("1: a PBM", plain("1", 1, "PPM"), WHITE),
    even("1: a PBM as text", netpbm("1", "", "1"), 0),
    *(
        even(f"L: a {form}", plain("L", 141, form), 141)
        for form in ("PNG", "TIFF", "PPM", "BMP", "GIF")
    ),
    even("L: a PNG of 2 bits", png(2, PNG_GREY, b"\x55", num_a_byte=4), 85),
    even("L: 2 bits, transparent", png(2, PNG_GREY, b"\x55", big(1), num_a_byte=4), WHITE),
    even("L: 4 bits, transparent", png(4, PNG_GREY, b"\x11", big(1), num_a_byte=2), WHITE),
    even("L: 4 bits, another transparent", png(4, PNG_GREY, b"\x11", big(2), num_a_byte=2), 17),
    even("L: 8 bits, transparent", png(8, PNG_GREY, b"\x11", big(0x11)), WHITE),
    even("L: a TIFF whose white is 0", tiff("<", WHITE_IS_0, "B", 100), 155),
    even("LA: a PNG", plain("LA", (100, 128), "PNG"), 177),
    even("LA: a TIFF", plain("LA", (100, 128), "TIFF"), 177),
    even("LA: a PNG of 16 bits", png(16, PNG_GREY_ALPHA, big(HIGH, 0x8080)), 166),
    even("I;16: a PNG", png(16, PNG_GREY, big(HIGH)), 78),
    even("I;16: a lighter PNG", png(16, PNG_GREY, big(LOW)), 175),
    even("I;16: a dark PNG", png(16, PNG_GREY, big(200)), 0),
    even("I;16: a white PNG", png(16, PNG_GREY, big(65_535)), WHITE),
    even("I;16: a PNG, transparent", png(16, PNG_GREY, big(HIGH), big(HIGH)), WHITE),
    even("I;16: a PNG, nearly transparent", png(16, PNG_GREY, big(HIGH), big(HIGH + 1)), 78),
    even("I;16: a TIFF of Intel", tiff("<", BLACK_IS_0, "H", HIGH), 78),
    even("I;16B: a TIFF of Motorola", tiff(">", BLACK_IS_0, "H", HIGH), 78),
    even("I;16: a TIFF whose white is 0", tiff("<", WHITE_IS_0, "H", 65_535 - HIGH), 78),
    even(
        "I;16: a TIFF of 12 bits",
        tiff("<", BLACK_IS_0, "H", bits=12, row=b"\x4e\x24\xe2" * (SIDE // 2)),
        78,
    ),
    *(
        even(f"I;16: a TIFF in {name}", plain("I;16", HIGH, "TIFF", compression=name), 78)
        for name in ("tiff_lzw", "tiff_adobe_deflate")
    ),
    even("I: a PGM of 16 bits", netpbm("5", 65_535, big(HIGH)), 78),
    even("I: a PGM of 12 bits", netpbm("5", 4095, big(1250)), 78),
    even("I: a PGM of 10 bits", netpbm("5", 1023, big(1023)), WHITE),
    even("I: a PGM to 256", netpbm("5", 256, big(128)), 128),
    even("I: a PGM of 16 bits as text", netpbm("2", 65_535, str(HIGH)), 78),
    even("L: a PGM to 100", netpbm("5", 100, bytes([31])), 79),
    even("L: a PGM to 100 as text", netpbm("2", 100, "31"), 79),
    even("L: a PGM to 1", netpbm("5", 1, b"\1"), WHITE),
    even("RGB: a PPM of 16 bits", netpbm("6", 65_535, big(HIGH, LOW, 255)), (78, 175, 0)),
    even("RGB: a PPM to 3", netpbm("6", 3, bytes([0, 1, 3])), (0, 85, 255)),
    even("RGB: a PPM as text", netpbm("3", 255, "100 150 200"), COLOUR),
    even("RGB: a PPM of 10 bits as text", netpbm("3", 1023, "0 512 1023"), (0, 128, 255)),
    even("P: a PNG", file_of(two_colours()), COLOUR),
    even("P: a GIF", file_of(two_colours(), "GIF"), COLOUR),
    even("P: a TIFF", file_of(two_colours(), "TIFF"), COLOUR),
    even("P: a BMP", file_of(two_colours(), "BMP"), COLOUR),
    even("P: half transparent", png(8, PNG_PALETTE, b"\1", b"\xff\x80", PALETTE), HALF),
    even("P: transparent", png(8, PNG_PALETTE, b"\1", b"\xff\0", PALETTE), WHITE),
    even(
        "P: 4 bits, half transparent",
        png(4, PNG_PALETTE, b"\x11", b"\xff\x80", PALETTE, num_a_byte=2),
        HALF,
    ),
    even("P: a transparent GIF", file_of(two_colours(), "GIF", transparency=1), WHITE),
    *(
        even(f"RGB: a {form}", plain("RGB", COLOUR, form), COLOUR)
        for form in ("PNG", "TIFF", "BMP")
    ),
    *(
        even(f"RGB: a {form}", plain("RGB", COLOUR, form, quality=100), COLOUR, 3)
        for form in ("JPEG", "WEBP", "AVIF")
    ),
    even("RGB: transparent", png(8, PNG_RGB, bytes(COLOUR), big(*COLOUR)), WHITE),
    even("RGB: a PNG of 16 bits", png(16, PNG_RGB, big(HIGH, LOW, 255)), (78, 175, 0)),
    even(
        "RGB: 16 bits, transparent",
        png(16, PNG_RGB, big(HIGH, LOW, 255), big(HIGH, LOW, 255)),
        WHITE,
    ),
    even(
        "RGB: 16 bits, another transparent",
        png(16, PNG_RGB, big(78 << 8, 175 << 8, 0), big(78, 175, 0)),
        (78, 175, 0),
    ),
    *(
        even(f"RGB: a TIFF of 16 bits, {order}", tiff(order, TIFF_RGB, "HHH", HIGH, LOW, 255), c)
        for order, c in (("<", (78, 175, 0)), (">", (78, 175, 0)))
    ),
    even(
        "RGB: a BMP of 15 bits",
        bmp(16, struct.pack("<H", 12 << 10 | 18 << 5 | 24)),
        (99, 148, 197),
        1,
    ),
    even(
        "RGB: a BMP of 16 bits",
        bmp(16, struct.pack("<H", 12 << 11 | 37 << 5 | 24), (0xF800, 0x7E0, 0x1F)),
        (99, 150, 197),
        1,
    ),
    even("RGB: a BMP of 32 bits without alpha", bmp(32, bytes([200, 150, 100, 0])), COLOUR),
    even("RGBA: a PNG", plain("RGBA", (*COLOUR, 128), "PNG"), HALF),
    even("RGBA: a PNG of 16 bits", png(16, PNG_RGBA, big(25_700, 38_550, 51_400, 0x8080)), HALF),
    even("RGBA: a TIFF", tiff("<", TIFF_RGB, "BBBB", *COLOUR, 128, extra=ALPHA), HALF),
    even(
        "RGBa: a TIFF", tiff("<", TIFF_RGB, "BBBB", 50, 75, 100, 128, extra=PREMULTIPLIED), HALF, 1
    ),
    even("RGBA: a WebP", plain("RGBA", (*COLOUR, 128), "WEBP", lossless=True), HALF),
    even("RGBA: an AVIF", plain("RGBA", (*COLOUR, 128), "AVIF", quality=100), HALF, 3),
    even("PA: a TIFF", file_of(two_colours("PA", (1, 128)), "TIFF"), HALF),
    even("CMYK: a JPEG of Adobe's", cmyk_jpeg(has_marker=True), COLOUR, 2),
    even("CMYK: a JPEG without a marker", cmyk_jpeg(has_marker=False), COLOUR, 2),
    even("CMYK: a TIFF", plain("CMYK", (155, 105, 55, 0), "TIFF"), COLOUR),
    even("YCbCr: a JPEG", plain("YCbCr", (140, 160, 100), "JPEG", quality=100), (101, 149, 197), 3),
    even("LAB: a TIFF", tiff("<", TIFF_LAB, "BBB", 255, 0, 0), WHITE, 1),
    even("L: an AVIF", plain("L", 141, "AVIF", quality=100), 141, 1),
    *(
        ImageFile(f"EXIF: a {form}", turned(form, HALVES), np.array([[RED], [BLUE]], np.uint8))
        for form in ("PNG", "TIFF")
    ),
    ImageFile(
        "EXIF: a grey PNG of 16 bits",
        turned("PNG", Image.fromarray(np.array([[HIGH, LOW]], np.uint16))),
        np.array([[[78] * 3], [[175] * 3]], np.uint8),
    ),
]
UNDEFINED = {
    "F: a TIFF": tiff("<", BLACK_IS_0, "f", 0.5, form=FLOAT),
    "F: a PFM": netpbm("f", "-1.0", struct.pack("<f", 0.5)),
    "I: a TIFF of 32 bits": tiff("<", BLACK_IS_0, "I", 1 << 30),
    "I: a TIFF of 32 signed bits": tiff("<", BLACK_IS_0, "i", 1 << 30, form=SIGNED),
    "I: a TIFF of 16 signed bits": tiff("<", BLACK_IS_0, "h", -HIGH, form=SIGNED),
    "L: a TIFF of 8 signed bits": tiff("<", BLACK_IS_0, "b", -100, form=SIGNED),
}
BROKEN = {
    "too few values": netpbm("6", 99, b"abc")[:-1],
    "too few words": netpbm("2", 99, "12")[:-6],
    "a value above the largest": netpbm("5", 99, b"\x64"),
    "a word above the largest": netpbm("2", 99, "100"),
    "a word that is no number": netpbm("2", 99, "1x"),
}


def opened(data: bytes) -> PillowFile:
    return Image.open(io.BytesIO(data))
