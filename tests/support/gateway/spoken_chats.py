"""A spoken chat, whole and streamed."""

import json
from typing import Any

import httpx
from support.fakes.stages import FRAMES, WORDS
from support.gateway.serving import MODEL

TEXT = "".join(WORDS)
NUM_FRAMES = sum(FRAMES)


def asked(script: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": script}], **more}


def spoken(script: str, form: str = "pcm16", **more: Any) -> dict[str, Any]:
    audio = {"voice": "ethan", "format": form}
    return asked(script, modalities=["text", "audio"], audio=audio, **more)


def events_of(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-request-id"].startswith("req_")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
