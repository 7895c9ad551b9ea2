"""Opens files of sounds and videos with FFmpeg, in bounds: no file leads it to another."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import av

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.media.unreadable import Unreadable

MAX_FRAME_PIXELS = 16_777_216
MAX_DURATION_S = 3600
MAX_STREAMS = 16
# Containers of samples and frames: other formats name further files and hosts for FFmpeg to open.
CONTAINERS = (
    *("wav", "w64", "aiff", "au", "caf", "mp3", "flac", "ogg", "aac", "amr"),
    *("mov", "mp4", "matroska", "webm", "avi", "mpegts", "mpeg", "asf", "flv", "gif"),
)
BROKEN = (OSError, ValueError, MemoryError, av.FFmpegError)  # what PyAV raises over a file
CODEC_OPTIONS = {"max_pixels": str(MAX_FRAME_PIXELS)}
# PyAV hands them to streams, too, for when FFmpeg decodes frames to learn what no header says.
OPEN_OPTIONS = {
    "format_whitelist": ",".join(CONTAINERS),
    "protocol_whitelist": "none",
    **CODEC_OPTIONS,
}


def opened(data: bytes) -> Any:
    """Open a file that FFmpeg reads by itself; raises what PyAV does, and Unreadable."""
    container = av.open(io.BytesIO(data), options=OPEN_OPTIONS)
    if len(container.streams) > MAX_STREAMS:
        container.close()
        raise Unreadable(f"it has more than {MAX_STREAMS} streams")
    return container


@contextmanager
def first_stream(data: bytes, place: str, wanted: str) -> Iterator[tuple[Any, Any]]:
    """Give a file's container and its first stream of a kind.

    Raises ApiError, also for what PyAV raises inside.
    """
    try:
        with opened(data) as container:
            streams = [stream for stream in container.streams if stream.type == wanted]
            if not streams:
                raise invalid(place, f"has no {wanted} in it")
            yield container, streams[0]
    except BROKEN as error:
        raise invalid(place, f"cannot be read: {_reason(error)}") from error


def decoded(packet: Any) -> Sequence[Any]:
    """Return a packet's frames; none of a broken one, over which decoders go on."""
    try:
        frames: Sequence[Any] = packet.decode()
    except av.FFmpegError:
        return ()
    return frames


def too_long(place: str, limits: str) -> ApiError:
    """Return the refusal of a medium that exceeds these limits."""
    return invalid(place, f"is longer than {limits}")


def _reason(error: Exception) -> str:
    """Say why a file cannot be read, without FFmpeg's numbers."""
    if isinstance(error, av.ArgumentError):  # FFmpeg's word for what is not on the list
        return f"it is no sound or video of a known format ({', '.join(CONTAINERS)})"
    return str(error) if isinstance(error, Unreadable) else "it is broken, or no sound or video"
