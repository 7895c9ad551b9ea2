"""Families are served where the packages that only others need are not installed."""

from collections.abc import Collection
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.blocked import without
from support.image_requests import (
    ask,
    bare_pipeline,
    expected,
    is_same,
    picture_server,
    pictures_of,
)
from support.server import ADMIN_KEY, running_server

from omnistage.stage_configs.families import KINDS

pytestmark = pytest.mark.engine


def packages_of_others(*kinds: str) -> set[str]:
    """What other kinds need or use, and these do not; and what these can do without."""
    all_of = {package for kind in KINDS.values() for package in (*kind.needs, *kind.uses)}
    return all_of - {package for name in kinds for package in KINDS[name].needs}


def block(folder: Path, packages: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in without(folder / "site", packages).items():
        monkeypatch.setenv(name, value)


async def test_images_are_made_without_vllm(
    tiny_qwen_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = packages_of_others("diffusers")
    assert packages >= {"vllm", "soundfile", "peft", "ftfy"}
    wanted = expected(bare_pipeline(tiny_qwen_image), "a lake", 1)
    block(tmp_path, [*packages, "transformers.models.qwen3_omni_moe"], monkeypatch)
    options = ["--admin-key", ADMIN_KEY]
    with picture_server("diffusers.yaml", tiny_qwen_image, tmp_path, *options) as server:
        (picture,) = pictures_of(await ask(server, "a lake", 1))
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {ADMIN_KEY}"}) as admin:
            loras = await admin.get(f"{server.url}/admin/lora")
    assert is_same(picture, wanted[0])
    assert "peft is not installed; pip install peft" in loras.text
    assert "it takes no LoRA" in (tmp_path / "log").read_text()


async def test_qwen3_omni_speaks_without_the_packages_of_images(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = packages_of_others("qwen3_omni.thinker", "qwen3_omni.talker", "qwen3_omni.code2wav")
    assert packages >= {"diffusers", "accelerate", "greenlet", "peft", "ftfy"}
    block(tmp_path, packages, monkeypatch)
    with running_server(str(tiny_checkpoint), tmp_path / "log") as server:
        reply = await server.ask([{"role": "user", "content": "Say hello."}], return_codes=True)
    assert reply.text
    assert len(reply.codes) > 1
    assert np.abs(reply.pcm).max() > 0
