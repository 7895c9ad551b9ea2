"""Control of a running diffusion stage over HTTP."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from support.models.loras import write_lora
from support.servers import image_requests
from support.servers.image_requests import bare_pipeline, expected, picture_server, pictures_of
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine

KEY = {"authorization": "Bearer sk-admin"}
PARTS = ["text_encoder", "transformer", "vae"]


@pytest.fixture(scope="module")
def images(tiny_qwen_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("admin")
    engine: dict[str, Any] = {"embedding_cache_mb": 4, "profile_folder": str(folder / "traces")}
    key = ("--admin-key", "sk-admin")
    with picture_server("diffusers.yaml", tiny_qwen_image, folder, *key, **engine) as server:
        yield server


def picture_of(pipeline: Any) -> npt.NDArray[np.uint8]:
    made: npt.NDArray[np.uint8] = expected(pipeline, "a cat", 1)[0]
    return made


def ask(server: TinyServer, **more: Any) -> httpx.Response:
    return asyncio.run(image_requests.ask(server, **{"prompt": "a cat", "seed": 1, **more}))


def picture(server: TinyServer, **more: Any) -> npt.NDArray[np.int64]:
    (made,) = pictures_of(ask(server, **more))
    return made.astype(int)


def admin(server: TinyServer, path: str, /, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}/admin/{path}", json=body, headers=KEY, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()["stages"]["dit"]


def look(server: TinyServer, path: str) -> Any:
    answer = httpx.get(f"{server.url}/admin/{path}", headers=KEY, timeout=600)
    return answer.json()["stages"]["dit"]


def test_pictures_with_adapters_and_without_at_once(
    images: TinyServer, tiny_qwen_image: Path, tmp_path: Path
) -> None:
    file = write_lora(bare_pipeline(tiny_qwen_image), tmp_path / "ink", 1)
    plain = picture_of(bare_pipeline(tiny_qwen_image))
    with_ink = bare_pipeline(tiny_qwen_image)
    with_ink.load_lora_weights(file.parent, weight_name=file.name, adapter_name="ink")
    inked = picture_of(with_ink)
    with_ink.set_adapters(["ink"], [0.5])
    half = picture_of(with_ink)
    assert admin(images, "lora/add", name="ink", path=str(file))["loras"][0]["name"] == "ink"
    bodies: list[dict[str, Any]] = [
        {"lora": {"name": "ink"}},
        {},
        {"lora": [{"name": "ink", "scale": 0.5}]},
    ]
    with ThreadPoolExecutor() as pool:
        pictures = list(pool.map(lambda body: picture(images, **body), bodies))
    for made, wanted in zip(pictures, (inked, plain, half), strict=True):
        assert np.abs(made - wanted).max() <= 1
    assert np.abs(inked.astype(int) - plain).max() > 8
    unknown = ask(images, lora={"name": "oil"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "lora[0].name")
    admin(images, "lora/pin", name="ink")
    assert look(images, "lora")["loras"][0]["pinned"]
    assert admin(images, "lora/remove", name="ink") == {"loras": []}


@pytest.mark.parametrize(
    ("lora", "param"),
    [
        ("ink", "lora"),
        ([], "lora"),
        ({"scale": 1}, "lora[0].name"),
        ({"name": "ink", "scale": "1"}, "lora[0].scale"),
        ({"name": "ink", "weight": 1}, "lora[0].weight"),
        ([{"name": "ink"}, {"name": "ink"}], "lora"),
    ],
)
def test_a_wrong_lora_is_a_400(lora: Any, param: str, images: TinyServer) -> None:
    refused = ask(images, lora=lora)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("level", [1, 2])
def test_a_stage_that_slept_makes_the_same_picture(level: int, images: TinyServer) -> None:
    before = picture(images)
    assert admin(images, "sleep", level=level) == {"asleep": PARTS}
    refused = ask(images)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
    assert images.health()["dit"]["asleep"] == PARTS
    assert admin(images, "wake", tags=["transformer", "vae"]) == {"asleep": ["text_encoder"]}
    assert ask(images).status_code == 503
    assert admin(images, "wake") == {"asleep": []}
    assert (picture(images) == before).all()


def test_embeddings_are_kept_and_counted(images: TinyServer) -> None:
    admin(images, "cache/clear")
    before = look(images, "cache")["embeddings"]
    first = picture(images, prompt="a heron")
    assert (picture(images, prompt="a heron") == first).all()
    after = look(images, "cache")["embeddings"]
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (1, 1)
    assert after["bytes"] > 0


def test_a_profile_is_written(images: TinyServer) -> None:
    file = Path(admin(images, "profile/start", prefix="try")["file"])
    picture(images)
    assert admin(images, "profile/stop") == {"file": str(file)}
    assert file.stat().st_size > 1000
