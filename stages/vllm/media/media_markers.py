"""Keeps the words that stand for media apart from the same words written by a user.

The processor puts media where it finds their markers, the first one first: a written marker would
take the place of a medium. Without media a marker is text like any other.
"""

from collections.abc import Iterator, Sequence

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.worker.failure import RequestError

MEDIA_PARTS = ("image_url", "audio_url", "video_url", "input_audio")


def check_markers(body: JsonMap, markers: Sequence[str]) -> None:
    """Raise RequestError if a chat body has media, and a marker of media in one of its texts."""
    if not _has_media(body["messages"]):
        return
    for name in ("messages", "tools", "chat_template_kwargs"):
        for place, text in _texts(body.get(name), name):
            for marker in markers:
                if marker in text:
                    message = f"{place} contains {marker}, which stands for a medium; beside media"
                    message += " it cannot be written."
                    raise RequestError(400, message, param=place, code="invalid_value")


def _has_media(messages: Sequence[JsonMap]) -> bool:
    return any(
        part["type"] in MEDIA_PARTS
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Every string below a place, keys too, but no media."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{place}[{number}]")
    elif isinstance(value, dict) and value.get("type") not in MEDIA_PARTS:
        for key, item in value.items():
            yield place, key
            yield from _texts(item, f"{place}.{key}")
