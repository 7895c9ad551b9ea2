"""What is asked for is drawn, each request its own, and what is drawn is seen."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.media.pictures import pixels_of
from support.oracles.drawings import faults
from support.oracles.meaning import (
    SIDE,
    TIMEOUT_S,
    SmallServer,
    assert_said,
    chat_body,
    picture_part,
    text_part,
)
from support.servers.server import VERIFY, running_server

pytestmark = pytest.mark.engine

PROMPTS = (
    "a red circle on blue",
    "a green square on white",
    "a yellow triangle on black",
    "a purple square on yellow",
    "an orange triangle on blue",
)
PLACED = ("a green square to the left of a yellow star on black", PROMPTS[0])


async def test_wishes_at_once_have_each_their_own_words_and_drawing(small: SmallServer) -> None:
    async def make(prompt: str) -> npt.NDArray[np.uint8]:
        body = chat_body(f"Draw {prompt}.", modalities=["text", "image"], seed=1)
        async with small.client() as client:
            reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        assert choice["message"]["content"] == f"Here is {prompt}."
        (image,) = choice["message"]["images"]
        return pixels_of(image["image_url"]["url"].partition(",")[2])

    made = await asyncio.gather(*(make(prompt) for prompt in PROMPTS))
    assert {pixels.shape for pixels in made} == {(SIDE, SIDE, 3)}
    wrong = {prompt: faults(pixels, prompt) for prompt, pixels in zip(PROMPTS, made, strict=True)}
    assert not any(wrong.values()), wrong
    assert all(faults(made[0], prompt) for prompt in PROMPTS[1:])


def test_the_model_that_draws_is_served_by_its_name(tmp_path: Path) -> None:
    with running_server("small-image", tmp_path / "log") as server:
        for prompt in PLACED:
            body = {"prompt": prompt, "seed": 1, "response_format": "b64_json"}
            url = f"{server.url}/v1/images/generations"
            reply = httpx.post(url, json=body, timeout=TIMEOUT_S, verify=VERIFY)
            assert reply.status_code == 200, reply.text
            (made,) = reply.json()["data"]
            assert faults(pixels_of(made["b64_json"]), prompt) == []


def test_a_wish_is_answered_with_words_a_voice_and_a_drawing_that_is_seen_again(
    small: SmallServer,
) -> None:
    more: dict[str, Any] = {"modalities": ["text", "audio", "image"], "seed": 1}
    more["audio"] = {"voice": "adam", "format": "wav"}
    body = chat_body("Draw a red circle on blue.", **more)
    (choice,) = small.post("/v1/chat/completions", body).json()["choices"]
    message = choice["message"]
    said = message["audio"]["transcript"]
    assert said == "Here is a red circle on blue."
    assert_said(base64.b64decode(message["audio"]["data"]), said)
    (image,) = message["images"]
    pixels = pixels_of(image["image_url"]["url"].partition(",")[2])
    assert faults(pixels, said) == []
    part = picture_part(Image.fromarray(pixels))
    assert small.answer([part, text_part("What is in the picture?")]) == "A red circle on blue."
