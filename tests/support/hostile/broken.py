"""Files of media, broken in every way in which files break on their way, or are broken by hand."""

import io
import re
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image
from support.media.recorded import encoded_sound, encoded_video, moving, plain_wav, tones

SIDES = (48, 32)


# Arrays, paths, classes, bytes, addresses, numbers of FFmpeg, variables of an environment.
INTERNAL = re.compile(r"array\(|/\w+/|Error\b|<[^>]*>|\bb['\"]|0x[0-9a-f]+|Errno|[A-Z]{3,}_[A-Z]")


def is_internal(message: str) -> bool:
    """Return whether a message tells what is nobody's business."""
    return INTERNAL.search(message) is not None


def image(form: str, **options: object) -> bytes:
    """Return a picture of SIDES with noise in it, so that its file has a body."""
    noise = np.random.default_rng(0).integers(0, 256, (SIDES[1], SIDES[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, form, **options)
    return buffer.getvalue()


def sound(form: str, codec: str, sample_format: str, rate_hz: int = 24_000) -> bytes:
    """Return half a second in a container."""
    return encoded_sound(tones(0.5, rate_hz), rate_hz, form, codec, sample_format)


IMAGES: Mapping[str, bytes] = {
    "PNG": image("PNG"),
    "JPEG": image("JPEG"),
    "progressive JPEG": image("JPEG", progressive=True),
    "WebP": image("WEBP"),
    "WebP without loss": image("WEBP", lossless=True),
    "AVIF": image("AVIF"),
    "GIF": image("GIF"),
    "BMP": image("BMP"),
    "TIFF": image("TIFF"),
    "TIFF with LZW": image("TIFF", compression="tiff_lzw"),
    "PPM": image("PPM"),
    "ICO": image("ICO", sizes=[(32, 32)]),
}
SOUNDS: Mapping[str, bytes] = {
    "WAV": plain_wav(tones(0.5, 16_000), 16_000),
    "W64": sound("w64", "pcm_s16le", "s16"),
    "AIFF": sound("aiff", "pcm_s16be", "s16"),
    "AU": sound("au", "pcm_s16be", "s16"),
    "CAF": sound("caf", "pcm_s16be", "s16"),
    "MP3": sound("mp3", "libmp3lame", "s16p"),
    "FLAC": sound("flac", "flac", "s16"),
    "Ogg": sound("ogg", "libopus", "flt", 48_000),
    "AAC": sound("adts", "aac", "fltp"),
    "AMR": sound("amr", "libopencore_amrnb", "s16", 8_000),
    "M4A": sound("ipod", "aac", "fltp"),
    "WebM": sound("webm", "libopus", "flt", 48_000),
}
VIDEOS: Mapping[str, bytes] = {
    "MP4": encoded_video(moving(8), "mp4", "libx264"),
    "MOV": encoded_video(moving(8), "mov", "libx264"),
    "Matroska": encoded_video(moving(8), "matroska", "libx264"),
    "WebM": encoded_video(moving(8), "webm", "libvpx"),
    "AVI": encoded_video(moving(8), "avi", "mpeg4"),
    "MPEG-TS": encoded_video(moving(8), "mpegts", "mpeg2video", 25),
    "MPEG": encoded_video(moving(8), "mpeg", "mpeg1video", 25),
    "ASF": encoded_video(moving(8), "asf", "wmv2"),
    "FLV": encoded_video(moving(8), "flv", "flv"),
    "GIF": encoded_video(moving(8), "gif", "gif", 4, pixel_format="rgb8"),
}
KINDS: Mapping[str, Mapping[str, bytes]] = {
    "image_url": IMAGES,
    "audio_url": SOUNDS,
    "video_url": VIDEOS,
}


def flipped(data: bytes, start: int, stop: int, count: int) -> bytes:
    """Return the same with so many bits the other way, the same ones each time."""
    broken = bytearray(data)
    places = np.random.default_rng(len(data)).integers(start, max(start + 1, stop), count)
    for number, place in enumerate(places):
        broken[min(place, len(data) - 1)] ^= 1 << number % 8
    return bytes(broken)


def with_sizes(data: bytes, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> bytes:
    """Return the same with its width and height, or the first words that may be sizes, changed."""
    size, at, after = 4, 16, 20
    if data.startswith(b"GIF"):
        size, at, after = 2, 6, 8
    elif data.startswith(b"BM"):
        size, at, after = 4, 18, 22
    elif data.startswith(b"\xff\xd8"):
        start = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        size, at, after = 2, start + 5, start + 7
    elif data[8:12] == b"WEBP":
        size, at, after = 2, 26, 28
    elif b"ispe" in data[:512]:
        start = data.index(b"ispe")
        size, at, after = 4, start + 8, start + 12
    elif data.startswith(b"\0\0\1\0"):
        size, at, after = 1, 6, 7
    elif data.startswith(b"RIFF"):
        size, at, after = 4, 4, 40
    first, second = change(data[at : at + size], data[after : after + size])
    return data[:at] + first + data[at + size : after] + second + data[after + size :]


BREAKAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "almost whole": lambda data: data[:-7],
    "header only": lambda data: data[:40],
    "bits of the header": lambda data: flipped(data, 4, 64, 12),
    "bits of the body": lambda data: flipped(data, len(data) // 3, len(data), 40),
    "zeros": lambda data: data[: len(data) // 3] + bytes(len(data) - len(data) // 3),
    "nothing but zeros": lambda data: bytes(len(data)),
    "another's magic": lambda data: b"\x7fELF\2\1\1\0" + data[8:],
    "swapped sizes": lambda data: with_sizes(data, lambda a, b: (b, a)),
    "sizes the other way": lambda data: with_sizes(data, lambda a, b: (a[::-1], b[::-1])),
    "giant sizes": lambda data: with_sizes(
        data, lambda a, b: (b"\x7f" + b"\xff" * (len(a) - 1), b"\x7f" + b"\xff" * (len(b) - 1))
    ),
    "empty": lambda data: b"",
    "garbage behind it": lambda data: data + flipped(bytes(4096), 0, 4096, 4096),
    "twice": lambda data: data * 2,
}
