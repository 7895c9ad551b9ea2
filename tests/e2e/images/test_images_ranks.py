"""A denoiser on two processes behind a server: its pictures, its commands, and a rank's death."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.faults.killed_image_stage import ENDLESS
from support.servers.image_requests import ask, expected, is_same, picture_server, pictures_of
from support.servers.server import ADMIN_KEY, TinyServer
from support.waiting import until

pytestmark = pytest.mark.engine

TESTS = Path(__file__).parents[2]
KEY = {"authorization": f"Bearer {ADMIN_KEY}"}
ENGINE: dict[str, Any] = {
    "parallel": {"ulysses": 2},
    "worker_extension_cls": "support.denoising.rank_extension.Extension",
}


@pytest.fixture(scope="module")
def images(tiny_qwen_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        key = ("--admin-key", ADMIN_KEY)
        with picture_server("diffusers.yaml", tiny_qwen_image, folder, *key, **ENGINE) as server:
            yield server


def rpc(server: TinyServer, method: str, *args: Any, **more: Any) -> httpx.Response:
    body = {"method": method, "args": list(args), **more}
    return httpx.post(f"{server.url}/admin/rpc", json=body, headers=KEY, timeout=600)


def processes(server: TinyServer) -> list[int]:
    """Of all ranks."""
    answer = rpc(server, "process", from_all=True)
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["stages"]["dit"]["result"]
    return found


async def check_pictures(server: TinyServer, bare: Any) -> None:
    """Three at once."""
    more = {"true_cfg_scale": 3.0, "negative_prompt": "rain"}
    prompts = ("a cat", "two red houses", "an old map of the world")
    answers = await asyncio.gather(*(ask(server, one, 7, **more) for one in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        (picture,) = pictures_of(answer)
        (wanted,) = expected(bare, prompt, 7, **more)
        assert is_same(picture, wanted)


async def test_a_dead_rank_is_a_dead_stage_that_starts_again(images: TinyServer, bare: Any) -> None:
    await check_pictures(images, bare)
    refused = rpc(images, "fail_on", 1)
    assert refused.status_code == 500
    assert "rank 1: RuntimeError: as it was told" in refused.json()["error"]["message"]
    _, second = processes(images)
    generation = images.health()["dit"]["generation"]
    running = asyncio.create_task(ask(images, "a cat", 1, **ENDLESS))
    await until(lambda: images.health()["dit"]["running"])
    os.kill(second, signal.SIGKILL)
    answer = await running
    assert answer.status_code in (500, 503), answer.text
    message = answer.json()["error"]["message"]
    assert "dit" in message
    assert "no sign of life" not in message

    def is_ready_again() -> bool:
        dit = images.health()["dit"]
        return bool(dit["state"] == "ready" and dit["generation"] > generation)

    await until(is_ready_again)
    assert second not in processes(images)
    await check_pictures(images, bare)
