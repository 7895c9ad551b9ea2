"""Looks at the media of a request before any stage does: is it what it says, and not too much.

An audio file is decoded, of a video its first frames, of an image what its format can be checked
by. What is sniffed counts, not what the client calls it.
"""

import base64
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import av
from PIL import Image, UnidentifiedImageError
from PIL.AvifImagePlugin import AvifImageFile
from PIL.ImageFile import ImageFile

from omnistage.server.errors import ApiError, invalid
from omnistage.server.media.blocks import MAX_FRAMES as MAX_PAGES
from omnistage.server.media.blocks import check_blocks
from omnistage.server.media.watching import AS_IT_IS, Watching

MAX_PIXELS = 64_000_000
MAX_FRAME_PIXELS = 16_777_216
MAX_DURATION_S = 3600
MAX_SAMPLES = MAX_DURATION_S * 48_000  # of all channels
MAX_FRAMES = MAX_DURATION_S * 60
MAX_VIDEO_PIXELS = 50_000_000_000  # of all frames: about a minute of one core
MAX_SEEN_PIXELS = 1 << 31  # of the frames that a model gets: a stage has them all at once
MAX_ICON_SIDE = 1024
ICON, PNG = b"\0\0\1\0", b"\x89PNG\r\n\x1a\n"
BOMB = Image.DecompressionBombError
# Read by Pillow itself: others start programs (EPS) or are no images (PDF).
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM", "ICO")
# Containers of samples and frames: other formats name further files and hosts for FFmpeg to open.
CONTAINERS = (
    *("wav", "w64", "aiff", "au", "caf", "mp3", "flac", "ogg", "aac", "amr"),
    *("mov", "mp4", "matroska", "webm", "avi", "mpegts", "mpeg", "asf", "flv", "gif"),
)
CODEC_OPTIONS = {"max_pixels": str(MAX_FRAME_PIXELS)}
# PyAV hands them to streams, too, for when FFmpeg decodes frames to learn what no header says.
OPEN_OPTIONS = {
    "format_whitelist": ",".join(CONTAINERS),
    "protocol_whitelist": "none",
    **CODEC_OPTIONS,
}
MAX_STREAMS = 16
MIN_FRAMES = 2
# What checking takes in memory, beside the file: a frame is held up to 17 times, for those that are
# shown before it, in at most two bytes for each of its values and half as many colours as pixels.
BASE_BYTES = 16 << 20
OPEN_BYTES = MAX_FRAME_PIXELS * 8
BYTES_PER_FRAME_PIXEL = 17 * 3

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Medium:
    """One medium of a request: the part that has it, and the part's place."""

    place: str
    kind: str
    source: dict[str, Any]
    watching: Watching = AS_IT_IS

    @classmethod
    def of_part(cls, part: Mapping[str, Any], path: str, watching: Watching = AS_IT_IS) -> "Medium":
        """That of a checked part, which is no text."""
        kind = part["type"]
        return cls(f"{path}.{kind}", kind, part[kind], watching)

    @property
    def url(self) -> str:
        """Where it is, if it is not here."""
        url: str = self.source.get("url", "")
        return "" if url.startswith("data:") else url

    @property
    def encoded(self) -> str:
        """Its base64."""
        data: str = self.source.get("data") or self.source["url"].partition(",")[2]
        return data

    def put(self, data: bytes) -> None:
        """Have it here, as a data URL."""
        encoded = base64.b64encode(data).decode("ascii")
        self.source["url"] = f"data:application/octet-stream;base64,{encoded}"


def media_of(body: Message) -> Iterator[Medium]:
    """Every medium of the checked messages of a chat's body."""
    watching = Watching.of(body)
    for i, message in enumerate(body["messages"]):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] != "text":
                yield Medium.of_part(part, f"messages[{i}].content[{j}]", watching)


def check_medium(medium: Medium, data: bytes) -> float:
    """How many seconds an audio file lasts, 0 for others; may take a while.

    Raises ApiError if it cannot be read or is too large.
    """
    check_blocks(data, medium.place)
    try:
        if medium.kind == "image_url":
            return _check_image(data, medium.place)
        if medium.kind == "video_url":
            return _check_watched(data, medium)
        return _check_stream(data, medium.place, "audio", _check_audio)
    except (OSError, ValueError, SyntaxError, av.FFmpegError, BOMB, struct.error) as error:
        raise invalid(medium.place, f"cannot be read: {reason_of(error)}") from error


def video_bytes(data: bytes) -> int:
    """How much memory the check of a video may take; it takes up to OPEN_BYTES to find out."""
    try:
        with _opened(data) as container:
            codecs = [stream.codec_context for stream in container.streams.video]
            pixels = max((codec.width * codec.height for codec in codecs), default=0)
    except (OSError, ValueError, av.FFmpegError):
        return 0  # the check says what is wrong
    return min(pixels, MAX_FRAME_PIXELS) * BYTES_PER_FRAME_PIXEL


def opened_image(data: bytes) -> ImageFile:
    """An image of which only the header is read; raises what Pillow does."""
    if data.startswith(ICON):  # Pillow decodes it at once, whatever its header says
        _check_icon(data)
    image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    if isinstance(image, AvifImageFile) and image.n_frames > MAX_PAGES:
        raise ValueError(f"it has more than {MAX_PAGES} frames")
    return image


def _check_icon(data: bytes) -> None:
    for place in range(6, min(6 + 16 * data[4], len(data) - 15), 16):
        (start,) = struct.unpack_from("<I", data, place + 12)
        head = data[start : start + 24]
        is_png = head.startswith(PNG)
        sides = struct.unpack(">II", head[16:]) if is_png else struct.unpack("<ii", head[4:12])
        if max(map(abs, sides)) > 2 * MAX_ICON_SIDE:  # a bitmap is twice as high, for its mask
            raise ValueError(f"it is an icon with a picture of more than {MAX_ICON_SIDE} a side")


def _opened(data: bytes) -> Any:
    container = av.open(io.BytesIO(data), options=OPEN_OPTIONS)
    if len(container.streams) > MAX_STREAMS:
        container.close()
        raise ValueError(f"it has more than {MAX_STREAMS} streams")
    return container


def _check_image(data: bytes, place: str) -> float:
    with opened_image(data) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise invalid(place, f"is {width} x {height}; at most {MAX_PIXELS} pixels")
        image.verify()
    return 0.0


def _check_watched(data: bytes, medium: Medium) -> float:
    """A video and, if it is heard, its sound."""
    check = partial(_check_video, watching=medium.watching)
    _check_stream(data, medium.place, "video", check)
    if medium.watching.is_heard:
        _check_stream(data, medium.place, "audio", _check_audio)
    return 0.0


def _check_stream(data: bytes, place: str, wanted: str, check: Callable[..., float]) -> float:
    with _opened(data) as container:
        streams = [stream for stream in container.streams if stream.type == wanted]
        if not streams:
            raise invalid(place, f"has no {wanted} in it")
        if container.duration is not None and container.duration > MAX_DURATION_S * av.time_base:
            raise _too_long(place)
        return check(container.demux(streams[0]), streams[0], place)


def _check_audio(packets: Iterable[Any], _: Any, place: str) -> float:
    """Decode all of it: what a file says of its length binds nobody."""
    seconds = 0.0
    num_samples = 0
    for frame in chain.from_iterable(map(_decoded, packets)):
        seconds += frame.samples / max(1, frame.sample_rate)
        num_samples += frame.samples * frame.layout.nb_channels
        if seconds > MAX_DURATION_S or num_samples > MAX_SAMPLES:
            raise _too_long(place)
    if num_samples == 0:
        raise invalid(place, "has no audio in it")
    return seconds


def sound_frames(data: bytes, place: str) -> Iterator[Any]:
    """The decoded frames of a sound; raises ApiError where it cannot be read."""
    check_blocks(data, place)
    try:
        with _opened(data) as container:
            if not container.streams.audio:
                raise invalid(place, "has no audio in it")
            yield from chain.from_iterable(map(_decoded, container.demux(audio=0)))
    except (OSError, ValueError, av.FFmpegError) as error:
        raise invalid(place, f"cannot be read: {reason_of(error)}") from error


def _check_video(packets: Iterable[Any], stream: Any, place: str, watching: Watching) -> float:
    """Decode its first frames, count the others."""
    codec = stream.codec_context
    pixels = codec.width * codec.height
    if pixels > MAX_FRAME_PIXELS:
        size = f"{codec.width} x {codec.height}"
        raise invalid(place, f"is {size}; at most {MAX_FRAME_PIXELS} pixels")
    codec.options = CODEC_OPTIONS
    num_frames = 0
    for num_packets, packet in enumerate(packets):  # the last one is empty
        if num_frames < MIN_FRAMES:
            num_frames += len(_decoded(packet))
        if num_packets > MAX_FRAMES or num_packets * pixels > MAX_VIDEO_PIXELS:
            raise _too_long(place)
    if num_frames == 0:
        raise invalid(place, "has no video in it")
    if num_frames < MIN_FRAMES:
        raise invalid(place, f"has {num_frames} frame; at least {MIN_FRAMES}")
    num_seen = watching.num_frames(num_packets, float(stream.average_rate or 0))
    if num_seen * pixels > MAX_SEEN_PIXELS:
        problem = f"would be seen by {num_seen} frames of {codec.width} x {codec.height}; at most "
        problem += f"{MAX_SEEN_PIXELS} pixels in all: ask for a lower fps or max_frames"
        raise invalid(place, problem)
    return 0.0


def _decoded(packet: Any) -> Sequence[Any]:
    """A packet's frames; none of a broken one, over which decoders go on."""
    try:
        frames: Sequence[Any] = packet.decode()
    except av.FFmpegError:
        return ()
    return frames


def _too_long(place: str) -> ApiError:
    return invalid(
        place,
        f"is longer than {MAX_DURATION_S} s, {MAX_SAMPLES} samples, "
        f"{MAX_FRAMES} frames or {MAX_VIDEO_PIXELS} pixels in all",
    )


def reason_of(error: Exception) -> str:
    """Return what a reader of media found wrong, in our words where its own are internal."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    if isinstance(error, av.ArgumentError):  # FFmpeg's word for what is not on the list
        return f"it is no sound or video of a known format ({', '.join(CONTAINERS)})"
    return str(error).partition("[Errno")[0].strip() or type(error).__name__
