"""GLM-Image over HTTP: image ids from vLLM, and the image that the pipeline draws from them."""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image
from references.omnigen2_drawings import Size, noise
from support.faults.killed_image_stage import ENDLESS, Process, check_a_killed_stage
from support.faults.leaving import all_leave, made_of_ids_without_end
from support.faults.shared_forwards import denoised_at_once, pid_of
from support.faults.stopping import stopped
from support.media.pictures import file_of, pixels_of
from support.oracles.glm_image import edit_arguments, make_greedy
from support.servers.image_requests import STEPS, ask, bare_pipeline, expected, is_same, pictures_of
from support.servers.reported_steps import check_every_step_is_reported
from support.servers.server import TinyServer, running_server
from support.servers.snapshots import MADE_IDS, MADE_STEPS

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.glm_image.sources import fitting

pytestmark = pytest.mark.engine

PRIOR, DIT = ("prior", "engine"), ("dit", "worker")
QUOTED = "A red fox says 'hello'"


@pytest.fixture(scope="module")
def bare_glm(tiny_glm_image: Path) -> Any:
    return make_greedy(bare_pipeline(tiny_glm_image))


@pytest.fixture(scope="module")
def server(tiny_glm_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """Its name makes sure that nothing is left of each test's requests."""
    folder = tmp_path_factory.mktemp("glm")
    document = yaml.safe_load((GRAPHS / "glm_image_tiny.yaml").read_text())
    document["stages"]["prior"]["engine"]["override_generation_config"] = {"temperature": 0}
    document["stages"]["dit"]["engine"]["max_megapixels"] = 16
    graph = folder / "graph.yaml"
    graph.write_text(yaml.safe_dump(document))
    with running_server(str(graph), folder / "log", "--model", str(tiny_glm_image)) as running:
        yield running


async def test_images_of_several_requests_equal_the_whole_pipelines(
    server: TinyServer, bare_glm: Any
) -> None:
    asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (QUOTED, {"size": "64x96"}, {"width": 64, "height": 96}),
        ("two cats", {"num_inference_steps": 2}, {"num_inference_steps": 2}),
        ("a dog", {"guidance_scale": 3.0}, {"guidance_scale": 3.0}),
        ("a bird", {"n": 2}, {"num_images_per_prompt": 2}),
    ]
    answers = await asyncio.gather(
        *(ask(server, prompt, seed, **more) for seed, (prompt, more, _) in enumerate(asked))
    )
    for seed, (answer, (prompt, _, more)) in enumerate(zip(answers, asked, strict=True)):
        wanted = expected(bare_glm, prompt, seed, **more)
        for picture, one in zip(pictures_of(answer), wanted, strict=True):
            assert is_same(picture, one), prompt
    other = expected(bare_glm, "two cats", 0, width=64, height=96)
    assert not is_same(pictures_of(answers[0])[0], other[0])


@dataclass(frozen=True)
class Edit:
    """An edit: its images [width, height], and the size of the result if the client says one."""

    prompt: str
    images: tuple[Size, ...]
    size: Size | None = None
    n: int = 1

    @property
    def given(self) -> list[Image.Image]:
        return [noise(size, seed) for seed, size in enumerate(self.images)]

    def expected(self, bare: Any, seed: int) -> Any:
        """The pipeline's images, of arguments that transformers makes."""
        processor = bare.processor.image_processor
        images = [fitting(processor, np.asarray(one)) for one in self.given]
        width, height = self.size or images[0].size
        arguments = edit_arguments(bare, self.prompt, images, height, width)
        return expected(bare, self.prompt, seed, num_images_per_prompt=self.n, **arguments)


EDITS = (
    Edit("make it 'blue'", ((64, 96),)),
    Edit("both in one room", ((64, 96), (96, 64)), (64, 64)),
    Edit("a hat", ((70, 90),), n=2),
)


async def edit(server: TinyServer, one: Edit, seed: int) -> httpx.Response:
    files = [("image[]", ("a.png", file_of(image), "image/png")) for image in one.given]
    form = {"prompt": one.prompt, "seed": seed, "n": one.n, "num_inference_steps": STEPS}
    if one.size is not None:
        form["size"] = "{}x{}".format(*one.size)
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(f"{server.url}/v1/images/edits", data=form, files=files)


async def test_edits_alone_and_at_once_equal_the_pipelines(
    server: TinyServer, bare_glm: Any
) -> None:
    alone = await edit(server, EDITS[0], 0)
    together = await asyncio.gather(*(edit(server, one, seed) for seed, one in enumerate(EDITS)))
    wanted = [one.expected(bare_glm, seed) for seed, one in enumerate(EDITS)]
    for answer, images in zip([alone, *together], [wanted[0], *wanted], strict=True):
        made = pictures_of(answer)
        assert len(made) == len(images)
        assert all(map(is_same, made, images))


async def test_a_chats_image_is_edited(server: TinyServer, bare_glm: Any) -> None:
    one = EDITS[0]
    url = f"data:image/png;base64,{base64.b64encode(file_of(one.given[0])).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": one.prompt}]
    body = {"messages": [{"role": "user", "content": parts}], "modalities": ["image"]}
    async with httpx.AsyncClient(timeout=600) as client:
        asked = {**body, "seed": 0, "num_inference_steps": STEPS}
        answer = await client.post(f"{server.url}/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    (drawn,) = answer.json()["choices"][0]["message"]["images"]
    picture = pixels_of(drawn["image_url"]["url"].partition(",")[2])
    assert is_same(picture, one.expected(bare_glm, 0)[0])


async def test_requests_with_texts_of_equal_length_share_forwards(
    server: TinyServer, bare_glm: Any
) -> None:
    num_steps = 30
    prompts = ["a cat 'one'", "a dog 'two'", "a fox 'six'"]
    asked = [ask(server, prompt, 7, num_inference_steps=num_steps) for prompt in prompts]
    made = await denoised_at_once(server, "prior", asked)
    for prompt, answer in zip(prompts, made.answers, strict=True):
        (picture,) = pictures_of(answer)
        assert is_same(picture, expected(bare_glm, prompt, 7, num_inference_steps=num_steps)[0])
    alone = len(prompts) * num_steps * 2  # with guidance
    assert made.num_requests == alone
    assert made.num_forwards < alone


async def test_ids_and_then_steps_are_progress_told_apart(server: TinyServer) -> None:
    await check_every_step_is_reported(server, before="prior")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"size": "100x64"}, "size"), ({"prompt": "a<sop>2 2<eop>"}, "prompt"), ({"n": 11}, "n")],
    ids=["size", "size tag", "too many"],
)
async def test_what_cannot_be_made_is_refused(
    fields: dict[str, Any], param: str, server: TinyServer
) -> None:
    answer = await ask(server, fields.pop("prompt", "a cat"), 1, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_field_that_the_pipeline_does_not_take_is_refused_before_ids_are_made(
    server: TinyServer,
) -> None:
    with stopped(pid_of(server, "prior", "engine")):
        answer = await asyncio.wait_for(ask(server, "a cat", 1, negative_prompt="rain"), 600)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "negative_prompt")


async def edited(server: TinyServer, seed: int) -> httpx.Response:
    return await edit(server, EDITS[seed % len(EDITS)], seed)


async def drawn_without_end(server: TinyServer, seed: int) -> httpx.Response:
    return await ask(server, QUOTED, seed, **ENDLESS)


PHASES: dict[str, tuple[Any, str, Process | None, str]] = {
    "its prompt": (edited, "prior", PRIOR, ""),
    "its ids": (made_of_ids_without_end, "prior", None, MADE_IDS),
    "its steps": (drawn_without_end, "dit", None, MADE_STEPS),
}


@pytest.mark.parametrize(("send", "within", "still", "counter"), PHASES.values(), ids=PHASES)
async def test_clients_that_hang_up_leave_nothing(
    send: Callable[[TinyServer, int], Coroutine[Any, Any, httpx.Response]],
    within: str,
    still: Process | None,
    counter: str,
    server: TinyServer,
    bare_glm: Any,
) -> None:
    await all_leave(server, partial(send, server), within, still, counter)
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare_glm, "a cat", 1)[0])


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
@pytest.mark.parametrize("killed", [PRIOR, DIT], ids=lambda one: one[0])
@pytest.mark.parametrize(("send", "within", "still", "counter"), PHASES.values(), ids=PHASES)
async def test_a_killed_stage_is_its_requests_error_and_starts_again(
    killed: Process,
    send: Callable[[TinyServer, int], Coroutine[Any, Any, httpx.Response]],
    within: str,
    still: Process | None,
    counter: str,
    server: TinyServer,
    bare_glm: Any,
) -> None:
    send_one = partial(send, server)
    await check_a_killed_stage(
        server, *killed, bare_glm, send=send_one, within=within, still=still, counter=counter
    )
