"""Looks at the media of a request before any stage does: is it what it says, and not too much.

Little is decoded: a sound's or video's first frame, of a picture what its format can be checked by.
The rest is left to the stage that wants it. What is sniffed counts, not what the client calls it.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import av
from PIL import Image, UnidentifiedImageError

from omnistage.server.errors import invalid

MAX_PIXELS = 64_000_000
MAX_FRAME_PIXELS = 16_777_216
MAX_DURATION_S = 3600
BOMB = Image.DecompressionBombError
# Read by Pillow itself: others start programs (EPS) or are no pictures (PDF).
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO")
MIN_FRAMES = 2

Message = Mapping[str, Any]


def has_media(messages: Sequence[Message]) -> bool:
    """Whether there is anything to look at."""
    return next(_media(messages), None) is not None


def check_media(messages: Sequence[Message]) -> None:
    """Raise ApiError for the first medium that cannot be read or is too large; may take a while.

    `messages` are checked ones: their media are data URLs and base64.
    """
    for place, kind, encoded in _media(messages):
        data = base64.b64decode(encoded)
        try:
            if kind == "image_url":
                _check_image(data, place)
            else:
                _check_stream(data, place, "video" if kind == "video_url" else "audio")
        except (OSError, ValueError, SyntaxError, av.FFmpegError, BOMB) as error:
            raise invalid(place, f"cannot be read: {_reason(error)}") from error


def _media(messages: Sequence[Message]) -> Iterator[tuple[str, str, str]]:
    """Place, kind and base64 of each medium."""
    for i, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for j, part in enumerate(content):
            kind = part["type"]
            place = f"messages[{i}].content[{j}].{kind}"
            if kind == "input_audio":
                yield place, kind, part[kind]["data"]
            elif kind != "text":
                yield place, kind, part[kind]["url"].partition(",")[2]


def _check_image(data: bytes, place: str) -> None:
    with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise invalid(place, f"is {width} x {height}; at most {MAX_PIXELS} pixels")
        image.verify()


def _check_stream(data: bytes, place: str, wanted: str) -> None:
    with av.open(io.BytesIO(data)) as container:
        streams = [stream for stream in container.streams if stream.type == wanted]
        if not streams or container.format.name.endswith("_pipe"):  # a picture is no video
            raise invalid(place, f"has no {wanted} in it")
        if container.duration is not None and container.duration > MAX_DURATION_S * av.time_base:
            raise invalid(place, f"is longer than {MAX_DURATION_S} s")
        if wanted == "video":
            video = streams[0].codec_context
            if video.width * video.height > MAX_FRAME_PIXELS:
                raise invalid(
                    place, f"is {video.width} x {video.height}; at most {MAX_FRAME_PIXELS} pixels"
                )
        wanted_frames = MIN_FRAMES if wanted == "video" else 1
        num_frames = sum(1 for _ in islice(container.decode(streams[0]), wanted_frames))
        if num_frames == 0:
            raise invalid(place, f"has no {wanted} in it")
        if num_frames < wanted_frames:
            raise invalid(place, f"has {num_frames} frame; at least {wanted_frames}")


def sound_s(data: bytes, place: str) -> float:
    """How long a sound that was checked lasts; raises ApiError, may take a while."""
    seconds = 0.0
    try:
        with av.open(io.BytesIO(data)) as container:
            for frame in container.decode(audio=0):
                seconds += frame.samples / frame.sample_rate
                if seconds > MAX_DURATION_S:
                    raise invalid(place, f"is longer than {MAX_DURATION_S} s")
    except av.FFmpegError as error:
        raise invalid(place, f"cannot be read: {_reason(error)}") from error
    return seconds


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    return str(error).partition("[Errno")[0].strip() or type(error).__name__
