"""Steps of an image that a server reports while it makes it."""

import json

import httpx
from support.server import TinyServer


async def check_every_step_is_reported(server: TinyServer) -> None:
    """Stream an image of three steps: each is reported once, in order."""
    body = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 3, "stream": True}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/images/generations"
        answer = await client.post(url, json={**body, "stream_progress": True})
    told = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    events = [json.loads(line) for line in told if line.startswith("{")]
    steps = [(one["step"], one["steps"]) for one in events if "step" in one]
    assert steps == [(1, 3), (2, 3), (3, 3)]
