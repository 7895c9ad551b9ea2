"""Media that lie beside the server are answered as those in the body; none leaves it larger."""

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import pytest
from support.api.prompts import (
    data_url,
    image_part,
    picture,
    sound,
    sound_part,
    text,
    video_bytes,
    video_part,
)
from support.hostile.bodies import large_png
from support.hostile.soak import memory_mib
from support.servers.server import TinyServer, assert_same_sound

pytestmark = pytest.mark.engine

# That a process may be larger after large pictures: of four that are decoded at once, of 65 MiB
# each, one may stay.
SETTLED_MIB = 80.0
COMES_BACK_S = 600.0


def as_file(part: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """The same part, its medium in a file."""
    kind = part["type"]
    encoded = part[kind].get("data") or part[kind]["url"].partition(",")[2]
    path = folder / name
    path.write_bytes(base64.b64decode(encoded))
    kind = "audio_url" if kind == "input_audio" else kind
    return {"type": kind, kind: {"url": f"file://{path}"}}


async def test_files_are_answered_as_data(server: TinyServer, media_folder: Path) -> None:
    parts = [
        image_part(picture(64, 64)),
        sound_part(sound(4800)),
        video_part(video_bytes(num_frames=4, size=32)),
    ]
    files = [as_file(part, media_folder, f"{number}") for number, part in enumerate(parts)]
    asked = text("What?")
    here = await server.ask([{"role": "user", "content": [*parts, asked]}])
    there = await server.ask([{"role": "user", "content": [*files, asked]}])
    assert there.text == here.text
    assert there.codes.tolist() == here.codes.tolist()
    assert_same_sound(there.pcm, here.pcm)


async def test_memory_of_large_pictures_comes_back(server: TinyServer) -> None:
    def memory() -> float:
        return memory_mib(server)["thinker worker"]

    await server.ask([{"role": "user", "content": [image_part(picture(64, 64)), text("?")]}])
    before = memory()
    url = data_url("image/png", large_png(9))
    content = [{"type": "image_url", "image_url": {"url": url}}, text("?")]
    asking = [server.ask([{"role": "user", "content": content}]) for _ in range(4)]
    await asyncio.gather(*asking)
    deadline = time.monotonic() + COMES_BACK_S
    while memory() - before >= SETTLED_MIB:  # cycles of objects go while others are made
        assert time.monotonic() < deadline, (before, memory())
        await server.ask([{"role": "user", "content": "And now?"}])
