"""Checks the parts of a message; media that are elsewhere are got later, by media/load.py.

Each part is built anew from the fields checked here; what a client adds beside them is dropped.
"""

import binascii
from collections.abc import Callable, Mapping
from typing import Any

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.media.sound import RawAudio

Part = Mapping[str, Any]
ELSEWHERE = ("http", "https", "file")
SCHEMES = "data, http, https or file"

DETAILS = ("auto", "low", "high", "original")
UNSUPPORTED = ("file", "image_embeds", "audio_embeds", "video_embeds")
# Of a video, and of a video or a picture: what is seen of them (chat/media_options.py).
FRAME_FIELDS = ("fps", "min_frames", "max_frames")
PIXEL_FIELDS = ("min_pixels", "max_pixels")
# Known and without effect, wherever a part has them.
WITHOUT_EFFECT = ("detail", "prompt_cache_breakpoint", "uuid")


def checked_part(part: Any, path: str) -> dict[str, Any]:
    """The part from its checked fields alone; raises ApiError."""
    kind = part.get("type") if isinstance(part, dict) else None
    build = PARTS.get(kind) if isinstance(kind, str) else None
    if kind in UNSUPPORTED:
        raise unsupported(f"{path}.type", f"{path}.type {kind!r}")
    if build is None:
        allowed = ", ".join(sorted(PARTS))
        raise invalid(f"{path}.type", f"{kind!r} is not supported; allowed: {allowed}")
    return build(part, path)


def unknown_part_keys(part: Part, path: str) -> list[str]:
    """Keys of a checked part that nobody here knows, and that so have no effect."""
    kind = part["type"]
    inner = "image_url" if kind == "input_image" else kind
    known = {"type", "text", kind, inner, *WITHOUT_EFFECT}
    if inner in ("image_url", "video_url"):
        known |= {*PIXEL_FIELDS, *(FRAME_FIELDS if inner == "video_url" else ())}
    unknown = [f"{path}.{key}" for key in sorted(part.keys() - known)]
    if isinstance(part.get(inner), dict):
        below = part[inner].keys() - {"url", "data", "format", *WITHOUT_EFFECT}
        unknown += [f"{path}.{inner}.{key}" for key in sorted(below)]
    return unknown


def _text(part: Part, path: str) -> dict[str, object]:
    key = part["type"] if part["type"] in ("refusal", "thinking") else "text"
    if not isinstance(part.get(key), str):
        raise invalid(f"{path}.{key}", "must be a string")
    return {"type": "text", "text": part[key]}


def _media(part: Part, path: str) -> dict[str, object]:
    key = "image_url" if part["type"] == "input_image" else part["type"]
    place = part.get(key)
    _check_is_here(part, place, f"{path}.{key}")
    param = f"{path}.{key}"
    _check_detail(part, path)
    if isinstance(place, dict):
        _check_detail(place, param)
        place, param = place.get("url"), f"{param}.url"
    url = checked_url(place, param)
    if not is_elsewhere(url):
        _check_base64(url.partition(",")[2], param)
    return {"type": key, key: {"url": url}}


def _check_is_here(part: Part, medium: object, param: str) -> None:
    """Raise ApiError for a `uuid` of vLLM's in place of a medium: none is kept to be named."""
    if not medium and part.get("uuid") is not None:
        raise unsupported(param, f"{param} by its uuid alone")


def checked_url(url: object, param: str) -> str:
    """A URL of what is elsewhere, or a data URL whose data are not checked; raises ApiError."""
    if not isinstance(url, str):
        raise invalid(param, f"must be a {SCHEMES} URL")
    if is_elsewhere(url):
        return url
    header, comma, _ = url.partition(",")
    if not header.startswith("data:"):
        raise invalid(param, f"must be a {SCHEMES} URL")
    if not comma or not header.endswith(";base64"):
        raise invalid(param, "must be a data URL with base64 data (data:…;base64,…)")
    return url


def is_elsewhere(url: str) -> bool:
    """Returns whether a URL says where something is, and not what."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() in ELSEWHERE and bool(colon)


def _check_detail(place: Mapping[str, object], path: str) -> None:
    if place.get("detail") not in (None, *DETAILS):
        raise invalid(f"{path}.detail", f"must be one of {', '.join(DETAILS)}")


def _input_audio(part: Part, path: str) -> dict[str, object]:
    audio = part.get("input_audio")
    if isinstance(audio, RawAudio):  # of a caller in this process
        return {"type": "input_audio", "input_audio": audio}
    _check_is_here(part, audio, f"{path}.input_audio")
    if not isinstance(audio, dict):
        raise invalid(f"{path}.input_audio", "must be an object with data and format")
    data, form = audio.get("data"), audio.get("format")
    if not isinstance(form, str) or not form.isalnum():
        raise invalid(f"{path}.input_audio.format", "must name a format such as wav or mp3")
    data = bare_base64(data, f"{path}.input_audio.data", "a part audio_url takes one")
    _check_base64(data, f"{path}.input_audio.data")
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def bare_base64(data: object, param: str, instead: str) -> str:
    """Return the base64 of a field that has it alone or in a data URL; raises ApiError.

    `instead` says where the URL of a file that is elsewhere may be given.
    """
    if not isinstance(data, str):
        raise invalid(param, "must be base64")
    if is_elsewhere(data):
        raise invalid(param, f"must be base64, not the URL of a file: {instead}")
    return checked_url(data, param).partition(",")[2] if data.startswith("data:") else data


def _check_base64(data: str, param: str) -> None:
    if not decoded(data, param):
        raise invalid(param, "is empty")


def decoded(data: str, param: str) -> bytes:
    """Returns what base64 stands for; raises ApiError."""
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise invalid(param, f"is not valid base64: {error}") from error


PARTS: Mapping[str, Callable[[Part, str], dict[str, Any]]] = {
    "text": _text,
    "input_text": _text,
    "output_text": _text,
    "refusal": _text,
    "thinking": _text,
    "image_url": _media,
    "input_image": _media,
    "audio_url": _media,
    "video_url": _media,
    "input_audio": _input_audio,
}
