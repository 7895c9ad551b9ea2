"""Pictures through two stages, the text encoder in vLLM and the denoiser, over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.faults.killed_image_stage import ENDLESS, Process, check_a_killed_stage
from support.faults.leaving import all_leave
from support.servers.image_requests import ask, expected, is_same, picture_server, pictures_of
from support.servers.server import TinyServer
from support.servers.snapshots import MADE_STEPS

pytestmark = pytest.mark.engine

LONG = "A fox in the snow, watercolour. " * 20  # more tokens than the pipeline reads


@pytest.fixture(scope="module")
def server(tiny_qwen_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """Its name makes sure that nothing is left of each test's requests."""
    log = tmp_path_factory.mktemp("split")
    with picture_server("qwen_image_split.yaml", tiny_qwen_image, log) as running:
        warm_up = {"n": 2, "true_cfg_scale": 2.0, "negative_prompt": "x"}
        pictures_of(asyncio.run(ask(running, "warm up", 0, **warm_up)))
        yield running


async def test_a_picture_equals_the_bare_pipelines_and_is_of_its_prompt(
    server: TinyServer, bare: Any
) -> None:
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare, "a cat", 1)[0])
    assert not is_same(picture, expected(bare, "something else", 1)[0])


async def test_guidance_lengths_sizes_and_steps_several_at_once(
    server: TinyServer, bare: Any
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("a cat", {"true_cfg_scale": 4.0, "negative_prompt": "a dog"}),
        ("a cat", {"true_cfg_scale": 4.0, "negative_prompt": "a dog"}),
        (LONG, {"true_cfg_scale": 2.0, "negative_prompt": "", "num_inference_steps": 4}),
        (LONG, {"width": 96, "height": 64}),
        ("a fox", {"true_cfg_scale": 1.0, "negative_prompt": LONG}),
        ("a fox and a cat", {"n": 2, "true_cfg_scale": 3.0, "negative_prompt": "rain"}),
        ("<|im_end|> {0} \n", {"num_inference_steps": 5}),
    ]
    answers = await asyncio.gather(
        *(ask(server, prompt, seed, **sized(more)) for seed, (prompt, more) in enumerate(asked))
    )
    for seed, (answer, (prompt, more)) in enumerate(zip(answers, asked, strict=True)):
        wanted = expected(bare, prompt, seed, **counted(more))
        for picture, one in zip(pictures_of(answer), wanted, strict=True):
            assert is_same(picture, one), seed


def sized(more: dict[str, Any]) -> dict[str, Any]:
    """Width and height instead of the size that requests have here."""
    return {**more, "size": None} if "width" in more else more


def counted(more: dict[str, Any]) -> dict[str, Any]:
    """The same by the names of the pipeline's arguments."""
    names = {"n": "num_images_per_prompt"}
    return {names.get(name, name): value for name, value in more.items()}


@pytest.mark.parametrize(
    ("within", "still", "counter"),
    [("text_encoder", ("text_encoder", "engine"), ""), ("dit", None, MADE_STEPS)],
    ids=["its prompt", "its steps"],
)
async def test_clients_that_hang_up_leave_nothing(
    within: str, still: Process | None, counter: str, server: TinyServer, bare: Any
) -> None:
    async def drawn_without_end(seed: int) -> httpx.Response:
        return await ask(server, LONG, seed, **ENDLESS)

    await all_leave(server, drawn_without_end, within, still, counter)
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare, "a cat", 1)[0])
    for name, stage in server.health().items():
        assert stage["generation"] == 1, name


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
@pytest.mark.parametrize(
    ("stage", "role"),
    [("dit", "worker"), ("text_encoder", "engine"), ("text_encoder", "worker")],
)
async def test_a_killed_stage_is_its_requests_error_and_starts_again(
    stage: str, role: str, server: TinyServer, bare: Any
) -> None:
    await check_a_killed_stage(server, stage, role, bare)
