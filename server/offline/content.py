"""From Python's objects in a conversation to the parts that the gateway checks.

Pictures are Pillow's images or arrays, sounds and videos are arrays with their rate, and each may
be a path, bytes or a URL. What is here is sent as a data URL; it is checked and decoded as a
client's would.
"""

import base64
import io
import mimetypes
import wave
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from omnistage.server.common.errors import invalid
from omnistage.server.media.colours import as_png_has
from omnistage.server.media.image_load import Source
from omnistage.server.media.images import File
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import checked_part
from omnistage.server.media.video.mp4 import MAX_DENOMINATOR
from omnistage.server.tasks.pieces import png_of
from omnistage.server.tasks.recordings import Audio, Video
from omnistage.server.tasks.videos.schema import MAX_FPS

Message = Mapping[str, object]
Messages = str | Sequence[Message]
SoundLike = Audio | tuple[npt.NDArray[Any], int] | bytes | Path | str
ImageLike = Image.Image | npt.NDArray[np.uint8] | bytes | Path | str

KINDS = ("image", "audio", "video")
# Where a part may have Python's object, and the part that the gateway knows.
KEYS = {
    **{kind: f"{kind}_url" for kind in KINDS},
    **{f"{kind}_url": f"{kind}_url" for kind in KINDS},
    "image_pil": "image_url",
}
MAX_RATE_HZ = 768_000
FLOAT_WAV = 3  # WAV's number for samples of floating point


def messages_of(given: Messages) -> list[dict[str, object]]:
    """A conversation whose media are URLs; a string is one turn of the user. Raises ApiError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages = []
    for number, message in enumerate(given):
        if not isinstance(message, Mapping):
            raise invalid(f"messages[{number}]", "must be a dict with a role and content")
        content = message.get("content")
        if isinstance(content, list | tuple):
            place = f"messages[{number}].content"
            parts = [_part(part, f"{place}[{i}]") for i, part in enumerate(content)]
            message = {**message, "content": parts}
        messages.append(dict(message))
    return messages


def has_objects(given: Messages) -> bool:
    """Returns whether making messages of it may take a while."""
    return not isinstance(given, str) and any(
        not isinstance(message.get("content"), str)
        for message in given
        if isinstance(message, Mapping)
    )


def _part(part: object, place: str) -> object:
    """A part of a message: a string, an object, or a dict that has one."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = _kind_of(part)
    if kind is not None:
        return {"type": f"{kind}_url", f"{kind}_url": {"url": _url(part, kind, place)}}
    key = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or key not in KEYS or isinstance(part.get(key), Mapping):
        return part
    known = KEYS[key]
    url = _url(part.get(key), known.partition("_")[0], f"{place}.{key}")
    return {"type": known, known: {"url": url}}


def _kind_of(part: object) -> str | None:
    """Returns what an object that is no part by itself is; a path is what its ending says."""
    if isinstance(part, Image.Image):
        return "image"
    if isinstance(part, Audio | Video):
        return "audio" if isinstance(part, Audio) else "video"
    if isinstance(part, Path):
        guessed = (mimetypes.guess_type(part.name)[0] or "").partition("/")[0]
        return guessed if guessed in KINDS else None
    return None


def given_as(value: object, kind: str, place: str) -> object:
    """Return a medium beside words as its file, or as it is if it says where it is; ApiError."""
    is_elsewhere = isinstance(value, Mapping) or (isinstance(value, str) and _is_url(value))
    return value if is_elsewhere else file_of(value, "image" if kind == "mask" else kind, place)


def _url(value: object, kind: str, place: str) -> str:
    if isinstance(value, str) and _is_url(value):
        return value
    data = base64.b64encode(file_of(value, kind, place)).decode("ascii")
    return f"data:application/octet-stream;base64,{data}"


def _is_url(text: str) -> bool:
    return text.startswith("data:") or "://" in text


def file_of(value: object, kind: str, place: str) -> bytes:
    """The bytes of a file of this kind; raises ApiError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str | Path):
        return _read(Path(value), place)
    if kind == "image" and isinstance(value, np.ndarray):
        value = _image_of(value, place)
    if kind == "image" and isinstance(value, Image.Image):
        return _png(value, place)
    if kind == "audio" and isinstance(value, Audio):
        return value.to_wav()
    if kind == "audio" and isinstance(value, tuple) and len(value) == 2:
        return wav_of(value[0], value[1], place)
    if kind == "video" and isinstance(value, tuple) and len(value) == 2:
        value = Video(*value)
    if kind == "video" and isinstance(value, Video):
        return _film_of(value, place)
    known = {
        "image": "a Pillow image, an array [height, width, 3]",
        "audio": "(samples, sample_rate_hz)",
        "video": "a Video, (frames, frames_per_second)",
    }
    raise invalid(place, f"must be {known[kind]}, bytes, a path or a URL, not {type(value)}")


def _png(image: Image.Image, place: str) -> bytes:
    try:
        return png_of(as_png_has(image))
    except (OSError, ValueError) as error:
        raise invalid(place, f"cannot be written as PNG: {error}") from error


def _read(path: Path, place: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise invalid(place, f"cannot be read: {path}: {error.strerror}") from error


def _image_of(pixels: npt.NDArray[Any], place: str) -> Image.Image:
    try:
        return Image.fromarray(pixels)
    except TypeError as error:
        raise invalid(place, f"is no picture of uint8: {error}") from error


def _film_of(video: Video, place: str) -> bytes:
    """Return a file that loses nothing of the frames."""
    frames, rate = np.asarray(video.frames), video.fps
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise invalid(place, "must have frames [n, height, width, 3] of uint8")
    if not isinstance(rate, int | float) or not 0 < rate <= MAX_FPS:
        raise invalid(place, f"must have a rate of at most {MAX_FPS} frames per second, not {rate}")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", Fraction(rate).limit_denominator(MAX_DENOMINATOR))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for frame in frames:
            image = np.ascontiguousarray(frame)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def wav_of(samples: npt.NDArray[Any], rate_hz: int, place: str) -> bytes:
    """A WAV file of samples [n] or [n, num_channels]: of int16, or of floats from -1 to 1."""
    array = np.asarray(samples)
    if not 1 <= rate_hz <= MAX_RATE_HZ:
        raise invalid(place, f"must have a rate of 1 to {MAX_RATE_HZ} Hz, not {rate_hz}")
    if array.ndim not in (1, 2) or array.dtype.kind not in "if":
        raise invalid(place, "must have samples [n] or [n, num_channels] of int16 or float32")
    is_float = array.dtype.kind == "f"
    if not is_float and array.dtype != np.int16:
        raise invalid(place, f"has samples of {array.dtype}; int16 or float32 are known")
    data = array.astype("<f4" if is_float else "<i2").tobytes()
    return _wav(data, 1 if array.ndim == 1 else array.shape[1], rate_hz, is_float)


def _wav(data: bytes, num_channels: int, rate_hz: int, is_float: bool) -> bytes:
    width = 4 if is_float else 2
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((num_channels, width, rate_hz, 0, "NONE", "not compressed"))
        file.writeframes(data)
    written = bytearray(buffer.getvalue())
    if is_float:
        written[20] = FLOAT_WAV  # the header's format, of which `wave` knows one only
    return bytes(written)


def source_of(value: object, place: str) -> Source:
    """An image to edit: a file, or where it is; raises ApiError."""
    if isinstance(value, str) and _is_url(value):
        part = checked_part({"type": "image_url", "image_url": value}, place)
        return Medium.of_part(part, place)
    return File(place, file_of(value, "image", place))
