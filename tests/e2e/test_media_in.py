"""Media that lie beside the server are answered as those in the body."""

import base64
from pathlib import Path
from typing import Any

import pytest
from support.prompts import image_part, picture, sound, sound_part, text, video_bytes, video_part
from support.server import TinyServer, assert_same_sound

pytestmark = pytest.mark.engine


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
