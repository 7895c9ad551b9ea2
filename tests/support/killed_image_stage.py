"""A stage of images that is killed while it has requests."""

import asyncio
import os
import signal
from typing import Any

from support.chaos import ready_again, victims
from support.image_requests import ask, expected, is_same, pictures_of
from support.server import TinyServer

ENDLESS = {"num_inference_steps": 1000}


async def check_a_killed_stage(server: TinyServer, stage: str, role: str, bare: Any) -> None:
    """Kill a process of a stage: its requests fail by its name, and it starts again.

    `bare`: the pipeline that a request afterwards is compared with.
    """
    await ready_again(server)
    before = server.health()
    running = [asyncio.create_task(ask(server, "a cat", seed, **ENDLESS)) for seed in range(3)]
    while server.health()["dit"]["running"] < len(running):
        assert not any(task.done() for task in running)
        await asyncio.sleep(0.02)
    os.kill(
        next(v for v in victims(server) if (v.stage, v.role) == (stage, role)).pid, signal.SIGKILL
    )
    for answer in await asyncio.gather(*running):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "stage_unavailable"
        message = answer.json()["error"]["message"]
        assert stage in message
        assert "no sign of life" not in message
    await ready_again(server)
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare, "a cat", 1)[0])
    for name, now in server.health().items():
        assert now["generation"] == before[name]["generation"] + (name == stage)
