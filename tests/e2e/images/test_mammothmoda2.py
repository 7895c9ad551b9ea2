"""MammothModa2 over HTTP: images of words, and words, as its own code makes them."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from references.mammothmoda2_drawings import DRAWINGS, QUESTIONS, STEPS, Drawing, Question
from support.api.prompts import data_url
from support.faults.killed_image_stage import ENDLESS, Process, check_a_killed_stage
from support.faults.leaving import all_leave, made_of_ids_without_end
from support.faults.shared_forwards import denoised_at_once
from support.media.pictures import file_of, pixels_of, png
from support.oracles.mammothmoda2 import Recorded, recorded
from support.servers.image_requests import ask, is_same, pictures_of
from support.servers.reported_steps import check_every_step_is_reported
from support.servers.server import TinyServer, running_server
from support.servers.snapshots import MADE_IDS, MADE_STEPS

pytestmark = pytest.mark.engine

WORDS, IMAGE_IDS = ("words", "engine"), ("image_ids", "engine")
DIT = ("dit", "worker")
NUM_WORDS = 256  # a byte each; no other id of an answer is shown
HALF = "\ufffd"  # of a character; at the end of an answer it is streamed, or not, as it comes


@pytest.fixture(scope="module")
def published(tiny_mammothmoda2: Path) -> Recorded:
    return recorded(tiny_mammothmoda2)


@pytest.fixture(scope="module")
def server(
    tiny_mammothmoda2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    """Its name makes sure that nothing is left of each test's requests."""
    log = tmp_path_factory.mktemp("mammothmoda2") / "log"
    largest = ("--stage", "dit.max_megapixels=16")
    with running_server(str(tiny_mammothmoda2), log, *largest) as running:
        asyncio.run(answered_at_once(running))  # the first large image opens zmq's collector
        yield running


async def answered_at_once(server: TinyServer) -> Sequence[httpx.Response]:
    return await asyncio.gather(*(chat_with(server, body_of(one)) for one in QUESTIONS))


async def draw(server: TinyServer, drawing: Drawing) -> httpx.Response:
    size = "{}x{}".format(*drawing.size)
    return await ask(server, drawing.prompt, drawing.seed, size=size, **drawing.arguments)


async def test_images_alone_and_at_once_equal_the_published_code(
    server: TinyServer, published: Recorded
) -> None:
    """Their texts and sizes differ; an image has a pair of halves, and its negative text none."""
    alone = [await draw(server, one) for one in DRAWINGS]
    together = await asyncio.gather(*(draw(server, one) for one in DRAWINGS))
    for answer, drawing in zip([*alone, *together], 2 * DRAWINGS, strict=True):
        (picture,) = pictures_of(answer)
        assert is_same(picture, published.of(drawing.prompt, "image")), drawing
    assert not is_same(pictures_of(alone[1])[0], published.of("a cat", "image"))


async def test_several_prompts_and_images_of_a_request_are_made(
    server: TinyServer, published: Recorded
) -> None:
    made = pictures_of(await ask(server, "a cat", 1, n=2))
    assert len(made) == 2
    assert is_same(made[0], published.of("a cat", "image"))


def body_of(question: Question) -> dict[str, Any]:
    """Return a chat's body: a question's images, then its text."""
    urls = [data_url("image/png", file_of(one)) for one in question.images]
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": question.text}]}]
    more = {"temperature": 0, "max_tokens": question.num_tokens, "return_token_ids": True}
    return {"messages": messages, "modalities": ["text"], **more}


async def chat_with(server: TinyServer, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=600) as client:
        return await client.post(f"{server.url}/v1/chat/completions", json=body)


def words_of(published: Recorded, question: Question) -> str:
    """Return the text of a recorded answer, without half characters at its end."""
    said = bytes(one for one in published.of(question.name, "answer") if one < NUM_WORDS)
    return said.decode(errors="replace").rstrip(HALF)


async def test_answers_alone_and_at_once_beside_an_image_equal_the_published_code(
    server: TinyServer, published: Recorded
) -> None:
    alone = [await chat_with(server, body_of(one)) for one in QUESTIONS[:4]]
    drawing, together = await asyncio.gather(draw(server, DRAWINGS[0]), answered_at_once(server))
    for answer, question in zip([*alone, *together], (*QUESTIONS[:4], *QUESTIONS), strict=True):
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["choices"]
        assert found["token_ids"] == published.of(question.name, "answer").tolist(), question
        assert found["message"]["content"].rstrip(HALF) == words_of(published, question)
    (picture,) = pictures_of(drawing)
    assert is_same(picture, published.of(DRAWINGS[0].prompt, "image"))


async def test_a_streamed_answer_equals_the_whole_one(
    server: TinyServer, published: Recorded
) -> None:
    question = QUESTIONS[4]
    body = {**body_of(question), "stream": True}
    ids: list[int] = []
    said, num_pieces = "", 0
    async with (
        httpx.AsyncClient(timeout=600) as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    ids += choice.get("token_ids") or ()
                    said += choice["delta"].get("content") or ""
                    num_pieces += bool(choice["delta"].get("content"))
    assert ids == published.of(question.name, "answer").tolist()
    assert said.rstrip(HALF) == words_of(published, question)
    assert num_pieces > 1


async def test_a_response_has_the_words_of_the_chat(
    server: TinyServer, published: Recorded
) -> None:
    question = QUESTIONS[3]
    parts = [
        {"type": "input_image", "image_url": data_url("image/png", file_of(one))}
        for one in question.images
    ]
    content = [*parts, {"type": "input_text", "text": question.text}]
    body = {"input": [{"role": "user", "content": content}], "temperature": 0}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/responses"
        answer = await client.post(url, json={**body, "max_output_tokens": question.num_tokens})
    assert answer.status_code == 200, answer.text
    said = [part["text"] for one in answer.json()["output"] for part in one["content"]]
    assert "".join(said).rstrip(HALF) == words_of(published, question)


async def test_a_chat_that_wants_an_image_has_its_words_drawn(
    server: TinyServer, published: Recorded
) -> None:
    body = {"messages": [{"role": "user", "content": "a cat"}], "modalities": ["image"]}
    more = {"size": "64x64", "num_inference_steps": STEPS, "seed": 1}
    answer = await chat_with(server, {**body, **more})
    assert answer.status_code == 200, answer.text
    (made,) = answer.json()["choices"][0]["message"]["images"]
    picture = pixels_of(made["image_url"]["url"].partition(",")[2])
    assert is_same(picture, published.of("a cat", "image"))


async def test_requests_with_texts_of_several_lengths_share_forwards(server: TinyServer) -> None:
    num_steps = 30
    prompts = ["a cat", "a red fox", "two cats and a fox in the snow"]
    asked = [ask(server, prompt, 7, num_inference_steps=num_steps) for prompt in prompts]
    made = await denoised_at_once(server, "image_ids", asked)
    for answer in made.answers:
        pictures_of(answer)
    alone = len(prompts) * num_steps
    assert made.num_requests == alone
    assert made.num_forwards < alone


async def test_ids_and_then_steps_are_progress_told_apart(server: TinyServer) -> None:
    await check_every_step_is_reported(server, before="image_ids")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"size": "80x64"}, "size", "width is 80; this model's sides are multiples of 32"),
        ({"size": "64x48"}, "size", "height is 48; this model's sides are multiples of 32"),
        ({"prompt": "a<|image start|>"}, "prompt", "has '<|image start|>', which only"),
        ({"negative_prompt": "<|im_end|>"}, "negative_prompt", "has '<|im_end|>', which only"),
        ({"prompt": "x" * 2000}, "prompt", "together at most 2048"),
        ({"negative_prompt": "x" * 2000}, "negative_prompt", "together at most 2048"),
        ({"n": 11}, "n", "less than or equal to 10"),
    ],
    ids=["width", "height", "mark", "mark in a negative", "long", "long negative", "too many"],
)
async def test_what_cannot_be_made_is_refused(
    fields: dict[str, Any], param: str, message: str, server: TinyServer
) -> None:
    answer = await ask(server, fields.pop("prompt", "a cat"), 1, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


async def drawn(server: TinyServer, seed: int) -> httpx.Response:
    return await draw(server, DRAWINGS[seed])


async def drawn_without_end(server: TinyServer, seed: int) -> httpx.Response:
    return await ask(server, "a cat", seed, **ENDLESS)


async def asked(server: TinyServer, seed: int) -> httpx.Response:
    return await chat_with(server, body_of(QUESTIONS[2 + seed % 2]))


async def answered_without_end(server: TinyServer, seed: int) -> httpx.Response:
    more = {"max_tokens": 1900, "ignore_eos": True, "seed": seed}
    return await chat_with(server, {**body_of(QUESTIONS[0]), **more})


Phase = tuple[Any, str, Process | None, str]
ANSWERED: dict[str, Phase] = {
    "a question": (asked, "words", WORDS, ""),
    "its answer": (answered_without_end, "words", None, MADE_IDS),
}
DRAWN: dict[str, Phase] = {
    "its prompt": (drawn, "image_ids", IMAGE_IDS, ""),
    "its ids": (made_of_ids_without_end, "image_ids", None, MADE_IDS),
    "its steps": (drawn_without_end, "dit", None, MADE_STEPS),
}
PHASES = ANSWERED | DRAWN
KILLS = {
    f"{killed[0]}, {name}": (killed, *phase)
    for killed, phases in ((WORDS, ANSWERED), (IMAGE_IDS, DRAWN), (DIT, DRAWN))
    for name, phase in phases.items()
}


@pytest.mark.parametrize(("send", "within", "still", "counter"), PHASES.values(), ids=PHASES)
async def test_clients_that_hang_up_leave_nothing(
    send: Callable[[TinyServer, int], Coroutine[Any, Any, httpx.Response]],
    within: str,
    still: Process | None,
    counter: str,
    server: TinyServer,
    published: Recorded,
) -> None:
    await all_leave(server, partial(send, server), within, still, counter)
    (picture,) = pictures_of(await ask(server, "a cat", 1, num_inference_steps=STEPS))
    assert is_same(picture, published.of("a cat", "image"))


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
@pytest.mark.parametrize(
    ("killed", "send", "within", "still", "counter"), KILLS.values(), ids=KILLS
)
async def test_a_killed_stage_is_its_requests_error_and_starts_again(
    killed: Process,
    send: Callable[[TinyServer, int], Coroutine[Any, Any, httpx.Response]],
    within: str,
    still: Process | None,
    counter: str,
    server: TinyServer,
    published: Recorded,
) -> None:
    send_one = partial(send, server)
    await check_a_killed_stage(
        server, *killed, published, send=send_one, within=within, still=still, counter=counter
    )
    answer = await chat_with(server, body_of(QUESTIONS[0]))
    ids = published.of(QUESTIONS[0].name, "answer").tolist()
    assert answer.json()["choices"][0]["token_ids"] == ids


async def test_an_edit_is_refused(server: TinyServer) -> None:
    files = {"image": ("a.png", png(64, 64), "image/png")}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/images/edits"
        answer = await client.post(url, data={"prompt": "make it blue"}, files=files)
    assert answer.status_code == 400
    assert "edit" in answer.json()["error"]["message"]
