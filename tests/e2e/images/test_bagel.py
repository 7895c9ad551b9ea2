"""BAGEL over HTTP: words, images of texts and of images, with and without a thought."""

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from references.bagel_inputs import DRAWINGS, MAX_WORDS, TALKS, image, images_of
from support.faults.killed_image_stage import Process, check_a_killed_stage
from support.faults.leaving import all_leave
from support.media.pictures import file_of, pixels_of
from support.oracles.bagel import Reader, RecordedDrawings, extra_of
from support.servers.image_requests import ask, is_same, pictures_of
from support.servers.reported_steps import check_every_step_is_reported
from support.servers.server import TinyServer, running_server
from support.servers.snapshots import MADE_STEPS

from omnistage.stages.bagel.contexts import ContextBuilder
from omnistage.stages.bagel.pipeline import BagelPipeline
from omnistage.stages.diffusion.request.outputs import pictures_of as images_made

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def recorded(tiny_bagel: Path) -> RecordedDrawings:
    return RecordedDrawings(tiny_bagel)


@pytest.fixture(scope="module")
def server(tiny_bagel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """The folder alone, without a graph file; nothing may be left of the tests' requests."""
    log = tmp_path_factory.mktemp("bagel") / "log"
    with running_server(str(tiny_bagel), log) as running:
        yield running


@pytest.fixture(scope="module")
def bare(tiny_bagel: Path) -> BagelPipeline:
    return BagelPipeline.from_pretrained(tiny_bagel)


async def draw(server: TinyServer, name: str) -> httpx.Response:
    """Ask for a recorded drawing: an edit as a form, others as JSON."""
    drawing = DRAWINGS[name]
    body: dict[str, Any] = {
        "prompt": drawing.prompt,
        "seed": drawing.seed,
        "num_inference_steps": drawing.num_steps,
        "guidance_scale": drawing.scales[0],
    }
    extra = extra_of(drawing)
    async with httpx.AsyncClient(timeout=600) as client:
        if drawing.size is not None:
            height, width = drawing.size
            body |= {"size": f"{width}x{height}", "extra": extra}
            return await client.post(f"{server.url}/v1/images/generations", json=body)
        files = [("image[]", ("a.png", file_of(one), "image/png")) for one in images_of(drawing)]
        form = {key: str(value) for key, value in body.items()} | {"extra": json.dumps(extra)}
        return await client.post(f"{server.url}/v1/images/edits", data=form, files=files)


def part_of(given: str | Image.Image) -> dict[str, Any]:
    """Return the part of a message that has a text or an image."""
    if isinstance(given, str):
        return {"type": "text", "text": given}
    url = f"data:image/png;base64,{base64.b64encode(file_of(given)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("name", ["text", "thought", "two"])
async def test_a_request_equals_the_authors(
    name: str, server: TinyServer, recorded: RecordedDrawings
) -> None:
    (picture,) = pictures_of(await draw(server, name))
    assert is_same(picture, recorded.pixels(name))


async def test_requests_at_once_equal_the_authors(
    server: TinyServer, recorded: RecordedDrawings
) -> None:
    answers = await asyncio.gather(*(draw(server, name) for name in DRAWINGS))
    for name, answer in zip(DRAWINGS, answers, strict=True):
        (picture,) = pictures_of(answer)
        assert is_same(picture, recorded.pixels(name)), name


async def say(server: TinyServer, texts: Sequence[str], **more: Any) -> httpx.Response:
    """Ask for words; the texts are those of a user and of an assistant in turn."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": role, "content": one} for role, one in zip(roles, texts, strict=False)]
    body = {"temperature": 0, "max_tokens": MAX_WORDS, "skip_special_tokens": False, **more}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/chat/completions"
        return await client.post(url, json={"messages": messages, **body})


async def test_words_alone_and_at_once_equal_the_authors_and_transformers(
    server: TinyServer, recorded: RecordedDrawings, tiny_bagel: Path
) -> None:
    names = ["words", *TALKS]
    thinks = [{"chat_template_kwargs": {"enable_thinking": TALKS[one].think}} for one in names]
    more = {"return_token_ids": True}
    asked = [
        say(server, TALKS[name].texts, **more, **think)
        for name, think in zip(names, thinks, strict=True)
    ]
    answers = [await asked[0], *await asyncio.gather(*asked[1:])]
    reader = Reader(tiny_bagel)
    for name, answer in zip(names, answers, strict=True):
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        assert choice["message"]["content"] == recorded.words(name) != "", name
        assert choice["token_ids"] == reader.written(TALKS[name])


@pytest.mark.parametrize("modalities", [["image"], ["text", "image"]], ids="-".join)
@pytest.mark.parametrize("name", ["thought", "thought edit"])
async def test_a_chat_is_answered_by_the_authors_thought_and_image(
    name: str, modalities: list[str], server: TinyServer, recorded: RecordedDrawings
) -> None:
    drawing = DRAWINGS[name]
    parts = [part_of(drawing.prompt), *map(part_of, images_of(drawing))]
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": parts}],
        "modalities": modalities,
        "seed": drawing.seed,
        "num_inference_steps": drawing.num_steps,
        "guidance_scale": drawing.scales[0],
        "extra": extra_of(drawing),
    }
    if drawing.size is not None:
        body["size"] = "{1}x{0}".format(*drawing.size)
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["reasoning_content"] == recorded.thought(name) != ""
    (drawn,) = message["images"]
    picture = pixels_of(drawn["image_url"]["url"].partition(",")[2])
    assert is_same(picture, recorded.pixels(name))


async def test_a_thought_is_streamed_before_its_image(
    server: TinyServer, recorded: RecordedDrawings
) -> None:
    drawing = DRAWINGS["thought"]
    body = {"messages": [{"role": "user", "content": drawing.prompt}], "stream": True}
    body |= {"modalities": ["text", "image"], "size": "64x64", "num_inference_steps": 2}
    pieces, images = [], 0
    async with (
        httpx.AsyncClient(timeout=600) as client,
        client.stream(
            "POST", f"{server.url}/v1/chat/completions", json={**body, "extra": extra_of(drawing)}
        ) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    if choice["delta"].get("reasoning_content"):
                        assert not images
                        pieces.append(choice["delta"]["reasoning_content"])
                    images += len(choice["delta"].get("images", ()))
    assert "".join(pieces) == recorded.thought("thought")
    assert len(pieces) > 1
    assert images == 1


async def test_a_conversation_is_read_whole_and_all_but_its_last_text_guides(
    server: TinyServer, bare: BagelPipeline
) -> None:
    texts = ["A red fox.", "In the snow?", "Yes, and an owl."]
    builder = ContextBuilder(bare, bare.settings, torch.device("cpu"))
    with torch.inference_mode():
        before = builder.text(builder.text(builder.empty(), texts[0]), texts[1])
        made = bare(
            prompt=texts[-1],
            contexts=[builder.text(before, texts[-1]).keys_and_values[0]],
            prefix_tokens=before.keys_and_values.shape[3],
            height=64,
            width=48,
            num_inference_steps=3,
            generator=torch.Generator().manual_seed(4),
            output_type="np",
        )
    more = {"size": "48x64", "seed": 4, "num_inference_steps": 3, "modalities": ["text", "image"]}
    answer = await say(server, texts, **more)
    assert answer.status_code == 200, answer.text
    (drawn,) = answer.json()["choices"][0]["message"]["images"]
    picture = pixels_of(drawn["image_url"]["url"].partition(",")[2])
    assert is_same(picture, images_made(made, 1)[0])


async def test_steps_are_reported_without_a_callback(server: TinyServer) -> None:
    await check_every_step_is_reported(server)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "100x64"}, "size"),
        ({"size": "256x64"}, None),
        ({"prompt": "a<|im_end|>"}, "prompt"),
        ({"negative_prompt": "rain"}, "negative_prompt"),
        ({"extra": {"cfg_renorm_type": "none"}}, "extra.cfg_renorm_type"),
        ({"extra": {"thinks": True}}, "extra.thinks"),
        ({"extra": {"think": "yes"}}, "extra.think"),
        ({"extra": {"think": True, "max_think_tokens": -1}}, "extra.max_think_tokens"),
        ({"extra": {"think": True, "max_think_tokens": 4000}}, "prompt"),
        ({"extra": {"prefix_tokens": 3}}, "extra.prefix_tokens"),
        ({"prompt": "a cat " * 400}, "prompt"),
        ({"n": 11}, "n"),
        ({"control_image": {"image_url": "data:image/png;base64,"}}, "control_image"),
    ],
    ids=str,
)
async def test_what_cannot_be_made_is_refused(
    fields: dict[str, Any], param: str | None, server: TinyServer
) -> None:
    answer = await ask(server, fields.pop("prompt", "a cat"), 1, **fields)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"] or "").startswith(param or "")


@pytest.mark.parametrize(
    ("parts", "more", "param", "message"),
    [
        (["a<|im_end|>"], {}, "messages[0].content[0]", "token of the model"),
        (["who?", image((40, 40), 1)], {}, "messages[0].content[1]", "see each other"),
        ([image((40, 40), 1)], {"modalities": ["text", "image"]}, "messages", "must have a text"),
    ],
    ids=["token", "image", "no text"],
)
async def test_a_chat_that_cannot_be_answered_is_refused(
    parts: list[Any], more: dict[str, Any], param: str, message: str, server: TinyServer
) -> None:
    content = [
        {"type": "text", "text": one} if isinstance(one, str) else part_of(one) for one in parts
    ]
    body = {"messages": [{"role": "user", "content": content}], **more}
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


LLM, DIT = ("llm", "engine"), ("dit", "worker")


async def think(server: TinyServer, seed: int) -> httpx.Response:
    return await ask(server, "a boat", seed, extra={"think": True, "max_think_tokens": 90})


async def draw_without_end(server: TinyServer, seed: int) -> httpx.Response:
    """Ask for what takes minutes: it makes no large images."""
    return await ask(server, "a cat", seed, n=10, num_inference_steps=1000)


@pytest.mark.parametrize(
    ("send", "within", "still", "counter"),
    [(think, "llm", LLM, ""), (draw_without_end, "dit", None, MADE_STEPS)],
    ids=["its thought", "its steps"],
)
async def test_clients_that_hang_up_leave_nothing(
    send: Callable[[TinyServer, int], Coroutine[Any, Any, httpx.Response]],
    within: str,
    still: Process | None,
    counter: str,
    server: TinyServer,
    recorded: RecordedDrawings,
) -> None:
    await all_leave(server, partial(send, server), within, still, counter)
    (picture,) = pictures_of(await draw(server, "edit"))
    assert is_same(picture, recorded.pixels("edit"))


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
@pytest.mark.parametrize("killed", [LLM, DIT], ids=str)
async def test_a_killed_stage_is_its_requests_error_and_starts_again(
    killed: Process, server: TinyServer, bare: BagelPipeline
) -> None:
    await check_a_killed_stage(server, *killed, bare, send=partial(draw_without_end, server))


@pytest.mark.parametrize("killed", [LLM, pytest.param(DIT, marks=pytest.mark.repeat)], ids=str)
async def test_a_stage_may_be_killed_while_the_model_thinks(
    killed: Process, server: TinyServer, bare: BagelPipeline
) -> None:
    send = partial(think, server)
    await check_a_killed_stage(server, *killed, bare, send=send, within="llm", still=LLM)
