"""Bodies that cost little to send and much to look at, one of each sort."""

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from support.hostile.bad_parts import audio_part, good_wav, url_part

CHAT = "/v1/chat/completions"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
JSON = "application/json"


@dataclass(frozen=True)
class Dear:
    """A body, made when it is needed, and what is said of it: 200 if it is only long."""

    name: str
    make: Callable[[], bytes]
    status: int = 400
    path: str = CHAT
    content_type: str = JSON


def chat(**more: Any) -> bytes:
    messages = [{"role": "user", "content": "Hi"}]
    return json.dumps({"messages": messages, "max_completion_tokens": 4, **more}).encode()


def with_part(part: dict[str, Any]) -> bytes:
    return chat(messages=[{"role": "user", "content": [part]}])


def with_image(data: bytes, kind: str = "image_url") -> bytes:
    return with_part(url_part(kind, "image/x", data))


def gif(num_frames: int) -> bytes:
    """Frames of one pixel each."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    control = b"\x21\xf9\x04\0\0\0\0\0"
    frame = control + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    return head + frame * num_frames + b";"


def tiff(num_pages: int) -> bytes:
    """Pages of one pixel each."""
    tags = [(256, 4, 1), (257, 4, 1), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 4)]
    tags += [(277, 3, 1), (278, 4, 1), (279, 4, 1)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    size = 2 + len(entries) + 4
    data = b"II*\0" + struct.pack("<I", 8)
    for page in range(num_pages):
        following = 8 + (page + 1) * size if page < num_pages - 1 else 0
        data += struct.pack("<H", len(tags)) + entries + struct.pack("<I", following)
    return data


def png(num_blocks: int) -> bytes:
    """One pixel, behind blocks of nothing."""

    def block(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = block(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    pixels = block(b"IDAT", zlib.compress(b"\0\0")) + block(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + block(b"teSt", b"") * num_blocks + pixels


def jpeg(num_segments: int) -> bytes:
    """A picture behind segments of nothing."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    picture = buffer.getvalue()
    return picture[:2] + b"\xff\xe9\0\2" * num_segments + picture[2:]


def long_wav() -> bytes:
    """A tenth of a second that says of itself that it is twelve hours."""
    data = bytearray(good_wav())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 0xFFFFFFF0)
    return bytes(data)


def form(num_fields: int) -> bytes:
    field = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    return field * num_fields + b"--x--\r\n"


def calls(num_calls: int) -> bytes:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call] * num_calls},
        {"role": "user", "content": "b"},
    ]
    return chat(messages=messages)


def tools(num_tools: int) -> bytes:
    function = {"name": "f", "parameters": {"type": "object"}}
    return chat(tools=[{"type": "function", "function": function}] * num_tools)


def schema(described: Any) -> bytes:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": described}}
    return chat(response_format=given)


def file_as_json(data: bytes) -> bytes:
    return json.dumps({"input_audio": {"data": base64.b64encode(data).decode()}}).encode()


def numbers(count: int) -> bytes:
    return chat(metadata=["@"]).replace(b'"@"', b"1," * count + b"1")


MILLION = 1_000_000
MILLION_KEYS = dict.fromkeys(range(MILLION), 1)
FORM = "multipart/form-data; boundary=x"
DEAR = [
    Dear("a million keys in logit_bias", lambda: chat(logit_bias=MILLION_KEYS)),
    Dear(
        "100,000 ids in logit_bias that no token has",
        lambda: chat(logit_bias=dict.fromkeys(range(10**6, 10**6 + 10**5), 1)),
    ),
    Dear(
        "100,000 keys in logit_bias that are no ids",
        lambda: chat(logit_bias={f"x{number}": 1 for number in range(100_000)}),
    ),
    Dear("5 million numbers in an ignored field", lambda: numbers(5 * MILLION)),
    Dear("a million keys in an ignored field", lambda: chat(metadata=MILLION_KEYS)),
    Dear("a million unknown fields", lambda: chat(**{f"f{one}": 1 for one in range(MILLION)})),
    Dear("a million tools that are none", lambda: chat(tools=[{}] * MILLION)),
    Dear("10,000 tools", lambda: tools(10_000)),
    Dear("a million stops", lambda: chat(stop=["a"] * MILLION)),
    Dear("a stop of 16 MiB", lambda: chat(stop="a" * (16 << 20))),
    Dear("a million words that are forbidden", lambda: chat(bad_words=["a"] * MILLION)),
    Dear("a million ids that are allowed", lambda: chat(allowed_token_ids=[-1] * MILLION)),
    Dear("100,000 messages", lambda: chat(messages=[{"role": "user", "content": "a"}] * 100_000)),
    Dear("a million messages that are none", lambda: chat(messages=[1] * MILLION)),
    Dear("20,000 calls in a message", lambda: calls(20_000)),
    Dear("an unknown role of 16 MiB", lambda: chat(messages=[{"role": "a" * (16 << 20)}])),
    Dear("a stage of 16 MiB", lambda: chat(stage_params={"a" * (16 << 20): {}})),
    Dear("5 million escapes", lambda: chat(stop=["@"]).replace(b"@", rb"\u0001" * (5 * MILLION))),
    Dear("an enum of 28 MiB", lambda: schema({"enum": ["a" * 100] * 280_000})),
    Dear("23 MiB of base64", lambda: with_image(bytes(23 << 20))),
    Dear("a GIF of 20,000 frames", lambda: with_image(gif(20_000))),
    Dear("a GIF of 20,000 frames as a video", lambda: with_image(gif(20_000), "video_url")),
    Dear("a TIFF of 2,000 pages", lambda: with_image(tiff(2000))),
    Dear("a PNG of 1.8 million blocks", lambda: with_image(png(1_800_000))),
    Dear("a JPEG of 5 million segments", lambda: with_image(jpeg(5 * MILLION))),
    Dear("a WAV that says it is hours", lambda: with_part(audio_part(long_wav())), 200),
    Dear("500,000 fields of a form", lambda: form(500_000), 400, TRANSCRIPTIONS, FORM),
    Dear("20 MiB of no sound as JSON", lambda: file_as_json(bytes(20 << 20)), 400, TRANSCRIPTIONS),
]
REFUSED_BY_A_STAGE = [one for one in DEAR if one.name == "20,000 calls in a message"]
