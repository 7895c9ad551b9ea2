"""Images are made where the packages that only other families need are not installed.

tests/e2e/answers/test_speculation.py does the same for Qwen3-Omni.
"""

from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.blocked import BLOCKED, packages_of_others
from support.servers.image_requests import ask, expected, is_same, pictures_of
from support.servers.server import ADMIN_KEY, TinyServer

pytestmark = pytest.mark.engine


@pytest.mark.usefixtures("images")
def test_its_start_says_what_it_cannot_do(images_log: Path) -> None:
    assert "it takes no LoRA" in images_log.read_text()


async def test_images_are_made_without_vllm(images: TinyServer, bare: Any) -> None:
    packages = packages_of_others("diffusers")
    assert packages >= {"vllm", "soundfile", "peft", "ftfy"}
    blocked = set(psutil.Process(images.process.pid).environ()[BLOCKED].split(","))
    assert blocked == {*packages, "transformers.models.qwen3_omni_moe"}
    (picture,) = pictures_of(await ask(images, "a lake", 1))
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {ADMIN_KEY}"}) as admin:
        loras = await admin.get(f"{images.url}/admin/lora")
    assert is_same(picture, expected(bare, "a lake", 1)[0])
    assert "peft is not installed; pip install peft" in loras.text
