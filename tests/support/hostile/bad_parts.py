"""Requests that are wrong, one by one, and media to put into them."""

import base64
import io
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from support.api.prompts import data_url, picture, sound, sound_part

MODEL = "MODEL"  # stands for the served model's name


@dataclass(frozen=True)
class Bad:
    """A body and what is said of it; `param` None: any."""

    name: str
    body: bytes
    status: int = 400
    param: str | None = None


def fields(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **more}


def bad(name: str, param: str | None = None, status: Any = 400, **more: Any) -> Bad:
    return Bad(name, json.dumps(fields(**more)).encode(), status, param)


def part(name: str, content: Any, param: str | None = None) -> Bad:
    messages = [{"role": "user", "content": [content]}]
    return bad(name, param or f"messages[0].content[0].{content['type']}", messages=messages)


def raw(name: str, text: str | bytes) -> Bad:
    return Bad(name, text if isinstance(text, bytes) else text.encode())


def url_part(kind: str, media_type: str, data: bytes) -> dict[str, Any]:
    return {"type": kind, kind: {"url": data_url(media_type, data)}}


def audio_part(data: bytes, form: str = "wav") -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": form}}


def png(width: int, height: int) -> bytes:
    """A PNG that says it is large; its data, if anyone inflated it, would be black."""

    def block(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = zlib.compress(bytes(1 + width * 3) * min(height, 64), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", head) + block(b"IDAT", rows) + block(b"IEND", b"")


def good_png() -> bytes:
    buffer = io.BytesIO()
    picture(64, 64).save(buffer, "PNG")
    return buffer.getvalue()


def good_wav(num_samples: int = 1600) -> bytes:
    data: str = sound_part(sound(num_samples))["input_audio"]["data"]
    return base64.b64decode(data)


AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "wav"}}
