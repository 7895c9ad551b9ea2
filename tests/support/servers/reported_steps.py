"""Steps of an image that a server reports while it makes it."""

import json

import httpx
from support.servers.server import TinyServer


async def check_every_step_is_reported(server: TinyServer, before: str | None = None) -> None:
    """Stream an image of three steps: each is reported once, in order, as one of the stage `dit`.

    Those of a stage `before` it, which makes image ids, come first, and end with all of them.
    """
    body = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 3, "stream": True}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/images/generations"
        answer = await client.post(url, json={**body, "stream_progress": True})
    told = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    events = [json.loads(line) for line in told if line.startswith("{")]
    steps = [(one["stage"], one["step"], one["steps"]) for one in events if "step" in one]
    assert steps[-3:] == [("dit", step, 3) for step in (1, 2, 3)]
    ids = steps[:-3]
    assert bool(ids) == (before is not None)
    if before is not None:
        num_ids = ids[0][2]
        assert {(stage, total) for stage, _, total in ids} == {(before, num_ids)}
        made = [step for _, step, _ in ids]
        assert made == sorted(set(made))
        assert made[-1] == num_ids > 1
