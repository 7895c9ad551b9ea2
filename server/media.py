"""Rewrites messages so that a stage sees no address it could fetch: media come inside the body.

Each part is built anew from the fields checked here; what a client adds beside them is dropped.
"""

import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omnistage.server.audio_history import AudioHistory
from omnistage.server.errors import ApiError

Part = Mapping[str, Any]


def self_contained(
    messages: Sequence[Mapping[str, Any]], history: AudioHistory
) -> list[dict[str, Any]]:
    """The messages with every part checked and every audio id replaced by what was said."""
    return [_message(message, f"messages[{i}]", history) for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str, history: AudioHistory) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise _bad(f"{path}.role", "must be a string")
    checked = dict(message)
    audio = checked.pop("audio", None)
    content = checked.get("content")
    if isinstance(content, list):
        checked["content"] = [_part(part, f"{path}.content[{i}]") for i, part in enumerate(content)]
    elif content is not None and not isinstance(content, str):
        raise _bad(f"{path}.content", "must be a string or a list of parts")
    if audio is not None and not content:
        checked["content"] = _spoken(audio, f"{path}.audio.id", history)
    return checked


def _spoken(audio: Any, param: str, history: AudioHistory) -> str:
    audio_id = audio.get("id") if isinstance(audio, dict) else None
    transcript = history.transcript(audio_id) if isinstance(audio_id, str) else None
    if transcript is None:
        message = f"No answer with the audio id {audio_id!r} is known, or it has expired."
        raise ApiError(400, message, param=param, code="audio_not_found")
    return transcript


def _part(part: Any, path: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    build = PARTS.get(kind) if isinstance(kind, str) else None
    if build is None:
        allowed = ", ".join(sorted(PARTS))
        raise _bad(f"{path}.type", f"{kind!r} is not supported; allowed: {allowed}")
    return build(part, path)


def _text(part: Part, path: str) -> dict[str, Any]:
    key = "refusal" if part["type"] == "refusal" else "text"
    if not isinstance(part.get(key), str):
        raise _bad(f"{path}.{key}", "must be a string")
    return {"type": "text", "text": part[key]}


def _media(part: Part, path: str) -> dict[str, Any]:
    key = "image_url" if part["type"] == "input_image" else part["type"]
    place = part.get(key)
    param = f"{path}.{key}"
    if isinstance(place, dict):
        place, param = place.get("url"), f"{param}.url"
    if not isinstance(place, str):
        raise _bad(param, "must be a data URL")
    header, comma, data = place.partition(",")
    if not header.startswith("data:"):
        scheme = place.partition(":")[0][:20] if ":" in place else "no"
        raise _bad(param, f"must be a data URL (data:…;base64,…); {scheme} URLs are not fetched")
    if not comma or not header.endswith(";base64"):
        raise _bad(param, "must be a data URL with base64 data (data:…;base64,…)")
    _check_base64(data, param)
    return {"type": key, key: {"url": place}}


def _input_audio(part: Part, path: str) -> dict[str, Any]:
    audio = part.get("input_audio")
    if not isinstance(audio, dict):
        raise _bad(f"{path}.input_audio", "must be an object with data and format")
    data, form = audio.get("data"), audio.get("format")
    if not isinstance(form, str) or not form.isalnum():
        raise _bad(f"{path}.input_audio.format", "must name a format such as wav or mp3")
    if not isinstance(data, str):
        raise _bad(f"{path}.input_audio.data", "must be base64")
    _check_base64(data, f"{path}.input_audio.data")
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def _check_base64(data: str, param: str) -> None:
    try:
        is_empty = not binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise _bad(param, f"is not valid base64: {error}") from error
    if is_empty:
        raise _bad(param, "is empty")


def _bad(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param} {problem}.", param=param, code="invalid_value")


PARTS: Mapping[str, Callable[[Part, str], dict[str, Any]]] = {
    "text": _text,
    "input_text": _text,
    "output_text": _text,
    "refusal": _text,
    "image_url": _media,
    "input_image": _media,
    "audio_url": _media,
    "video_url": _media,
    "input_audio": _input_audio,
}
