"""Bodies, heads and files that a hostile client sends."""

import asyncio
import base64
import contextlib
import io
import json
import random
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from PIL import Image
from support.hostile.bad_input import BAD
from support.hostile.bad_parts import good_png, good_wav, png, url_part

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A server to be hostile to."""

    host: str
    port: int
    model: str
    makes_images: bool

    @contextlib.asynccontextmanager
    async def connected(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def body(self, content: Any = "Hi", **more: Any) -> dict[str, Any]:
        """A small chat, with what makes it hostile."""
        messages = [{"role": "user", "content": content}]
        picture = {"modalities": ["image"], "size": "64x64", "num_inference_steps": 2}
        text = {"max_completion_tokens": 4, "temperature": 0}
        small = picture if self.makes_images else text
        return {"model": self.model, "messages": messages, **small, **more}


def many_keys(target: Target, chance: random.Random) -> bytes:
    return with_keys(target, chance.choice([20_000, 200_000, 1_000_000]))


@cache
def with_keys(target: Target, count: int) -> bytes:
    metadata = dict.fromkeys(map(str, range(count)), 1)
    return json.dumps(target.body(metadata=metadata)).encode()


def unknown_keys(target: Target, chance: random.Random) -> bytes:
    names = {f"unknown_{chance.random()}": 1 for _ in range(chance.choice([10, 10_000]))}
    return json.dumps(target.body(**names)).encode()


def deep(target: Target, chance: random.Random) -> bytes:
    depth = chance.choice([65, 1000, 1_000_000])
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    inner = opening * depth + b"1" + closing * depth
    return b'{"model": "' + target.model.encode() + b'", "messages": ' + inner + b"}"


def many_parts(target: Target, chance: random.Random) -> bytes:
    part = url_part("image_url", "image/png", b"x")
    return json.dumps(target.body([part] * chance.choice([513, 5000]))).encode()


def bad_utf8(target: Target, chance: random.Random) -> bytes:
    return json.dumps(target.body("@")).encode().replace(b"@", chance.randbytes(8) + b"\xff")


def bad_grammar(target: Target, chance: random.Random) -> bytes:
    wanted: Payload = chance.choice(
        [
            {"regex": "(" * 200},
            {"regex": "(a+)+" * 150 + "{1000}"},
            {"choice": []},
            {"json": {"$ref": "#/$defs/none"}},
            {"grammar": "root ::= root"},
        ]
    )
    return json.dumps(target.body(structured_outputs=wanted)).encode()


def heavy_schema(target: Target, chance: random.Random) -> bytes:
    leaf: Any = {"type": "string", "maxLength": 4096}
    for _ in range(chance.choice([5, 12])):
        leaf = {"type": "object", "properties": {"a": leaf, "b": {"anyOf": [leaf, leaf]}}}
        if len(json.dumps(leaf)) > 60_000:
            break
    schema = {"name": "x", "schema": leaf}
    return json.dumps(
        target.body(response_format={"type": "json_schema", "json_schema": schema})
    ).encode()


def mutated(target: Target, chance: random.Random) -> bytes:
    """A good body of which some bytes are others, or none."""
    data = bytearray(json.dumps(target.body(stop=["x"], seed=3, stream=False)).encode())
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data))
        if chance.random() < 0.5:
            data[place] = chance.randrange(256)
        else:
            del data[place : place + chance.randint(1, 9)]
    return bytes(data)


def known_bad(target: Target, chance: random.Random) -> bytes:
    return chance.choice(BAD).body.replace(b'"MODEL"', json.dumps(target.model).encode())


@cache  # making it must not disturb the clients that are timed
def frames_of(form: str, count: int) -> bytes:
    buffer = io.BytesIO()
    frames = [Image.new("L", (8, 8), number % 256) for number in range(count)]
    frames[0].save(buffer, form, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


@cache
def large_png(level: int) -> bytes:
    """63 million pixels, small as a file, whole."""

    def block(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    width, height = 7900, 8000
    packer = zlib.compressobj(level)
    rows = [packer.compress(bytes(1 + 3 * width)) for _ in range(height)]
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = b"".join([*rows, packer.flush()])
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        block(kind, data) for kind, data in ((b"IHDR", head), (b"IDAT", packed), (b"IEND", b""))
    )


def media_of(chance: random.Random) -> bytes:
    """A file that takes more than its size says."""
    make: Callable[[], bytes] = chance.choice(
        [
            lambda: frames_of("GIF", chance.choice([100, 5000])),
            lambda: frames_of("TIFF", chance.choice([100, 2000])),
            lambda: large_png(chance.choice([1, 9])),
            lambda: png(50_000, 50_000),
            lambda: png(4000, 4000),
            lambda: good_png()[: chance.randint(1, 200)],
            lambda: good_png() + chance.randbytes(1 << 20),
            lambda: flipped(good_png(), chance),
        ]
    )
    return make()


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(4):
        changed[chance.randrange(8, len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def picture(target: Target, chance: random.Random) -> bytes:
    parts = [url_part("image_url", "image/png", media_of(chance)), {"type": "text", "text": "?"}]
    return json.dumps(target.body(parts)).encode()


def sound(target: Target, chance: random.Random) -> bytes:
    data = chance.choice(
        [flipped(good_wav(), chance), good_wav()[:40], good_png(), chance.randbytes(2000)]
    )
    audio = {"data": base64.b64encode(data).decode(), "format": "wav"}
    return json.dumps(target.body([{"type": "input_audio", "input_audio": audio}])).encode()
