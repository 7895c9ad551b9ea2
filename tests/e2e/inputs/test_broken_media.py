"""Broken files, and media that the model cannot take, over HTTP with a tiny thinker."""

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import text
from support.hostile.bad_parts import url_part
from support.hostile.broken import BREAKAGES, KINDS, is_internal
from support.media.pictures import png
from support.media.recorded import encoded_video, plain_wav, tones
from support.servers.server import TinyServer

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::UserWarning")]

NUM_AT_ONCE = 8
PART = "messages[0].content[1]"
THIN = np.zeros((4, 4000, 16, 3), np.uint8)
# What files have in them that are whole, and the model's processor raises over.
UNPROCESSED = {
    "one sample": ("audio_url", plain_wav(tones(1 / 16_000, 16_000), 16_000)),
    "9 ms": ("audio_url", plain_wav(tones(0.009, 16_000), 16_000)),
    "a line": ("image_url", png(300, 1)),
    "a column": ("image_url", png(1, 5000)),
    "a thin video": ("video_url", encoded_video(THIN, "mov", "png", pixel_format="rgb24")),
}


async def answered(server: TinyServer, *parts: dict[str, Any]) -> httpx.Response:
    asked = [{"role": "user", "content": [text("What?"), *parts]}]
    body = {"messages": asked, "max_tokens": 1, "temperature": 0}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        return await client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_broken_file_is_read_or_refused_and_nothing_fails(
    kind: str, server: TinyServer
) -> None:
    places = asyncio.Semaphore(NUM_AT_ONCE)

    async def problem(name: str, how: str) -> str | None:
        part = url_part(kind, "application/octet-stream", BREAKAGES[how](KINDS[kind][name]))
        async with places:
            response = await answered(server, part)
        if response.status_code == 200:
            return None
        error = response.json()["error"]
        is_named = str(error["param"]).startswith(PART) and error["message"].startswith(PART)
        is_plain = len(error["message"]) <= 300 and not is_internal(error["message"])
        is_good = response.status_code == 400 and is_named and is_plain
        return None if is_good else f"{name}, {how}: {response.status_code} {error}"

    asked = (problem(name, how) for name in KINDS[kind] for how in BREAKAGES)
    assert list(filter(None, await asyncio.gather(*asked))) == []
    assert (await answered(server)).status_code == 200


@pytest.mark.parametrize("name", UNPROCESSED)
async def test_what_the_processor_raises_over_is_refused_in_words(
    name: str, server: TinyServer
) -> None:
    kind, data = UNPROCESSED[name]
    response = await answered(server, url_part(kind, "application/octet-stream", data))
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, PART, "invalid_value")
    problem = "cannot be processed by the model: it is too short, too small or too thin"
    assert error["message"] == f"{PART} {problem}."


async def test_of_several_media_the_messages_are_blamed(server: TinyServer) -> None:
    parts = [url_part(kind, "a/b", data) for kind, data in list(UNPROCESSED.values())[1:3]]
    error = (await answered(server, *parts)).json()["error"]
    assert error["param"] == "messages"
    assert len(error["message"]) <= 300
    assert not is_internal(error["message"])
