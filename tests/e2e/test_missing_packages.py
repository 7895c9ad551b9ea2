"""Images are made where the packages that only other families need are not installed.

tests/e2e/test_seeds.py does the same for Qwen3-Omni.
"""

from pathlib import Path

import httpx
import pytest
from support.blocked import packages_of_others, without
from support.image_requests import (
    ask,
    bare_pipeline,
    expected,
    is_same,
    picture_server,
    pictures_of,
)
from support.server import ADMIN_KEY

pytestmark = pytest.mark.engine


async def test_images_are_made_without_vllm(
    tiny_qwen_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = packages_of_others("diffusers")
    assert packages >= {"vllm", "soundfile", "peft", "ftfy"}
    wanted = expected(bare_pipeline(tiny_qwen_image), "a lake", 1)
    missing = [*packages, "transformers.models.qwen3_omni_moe"]
    for name, value in without(tmp_path / "site", missing).items():
        monkeypatch.setenv(name, value)
    options = ["--admin-key", ADMIN_KEY]
    with picture_server("diffusers.yaml", tiny_qwen_image, tmp_path, *options) as server:
        (picture,) = pictures_of(await ask(server, "a lake", 1))
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {ADMIN_KEY}"}) as admin:
            loras = await admin.get(f"{server.url}/admin/lora")
    assert is_same(picture, wanted[0])
    assert "peft is not installed; pip install peft" in loras.text
    assert "it takes no LoRA" in (tmp_path / "log").read_text()
