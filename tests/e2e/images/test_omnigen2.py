"""OmniGen2 over HTTP: images of words and of images, as its own code makes them."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from references.omnigen2_drawings import CHATS, DRAWINGS, LONG, SQUARE, STEPS, Drawing, noise
from support.faults.killed_image_stage import ENDLESS, Process, check_a_killed_stage
from support.faults.leaving import all_leave
from support.faults.shared_forwards import denoised_at_once, pid_of
from support.faults.stopping import in_slices
from support.faults.stuck_decoders import HAS_BEGUN, STUCK_SIZE
from support.media.pictures import file_of, pixels_of
from support.oracles.omnigen2 import Recorded, bare_omnigen2, recorded
from support.servers.image_requests import ask, expected, is_same, picture_server, pictures_of
from support.servers.omnigen2_requests import (
    answered,
    chat_fields,
    chat_with,
    choice,
    draw,
    drawn_in,
    messages_of,
    streamed,
    url_of,
)
from support.servers.reported_steps import check_every_step_is_reported
from support.servers.server import TinyServer, running_server
from support.servers.snapshots import MADE_IDS, MADE_STEPS
from transformers import AutoTokenizer

from omnistage.stages.omnigen2.checkpoint.tiny import make_tokenizer
from omnistage.stages.omnigen2.pipeline import OmniGen2Pipeline
from omnistage.stages.omnigen2.prompt import PICTURE

pytestmark = pytest.mark.engine

BEGINS = {str(make_tokenizer().id(PICTURE)): 100}  # the bias with which an answer is a picture
NEVER_BEGINS = {token: -bias for token, bias in BEGINS.items()}
ENDLESS_CHAT = {name: value for name, value in ENDLESS.items() if name != "n"}
HALF = "\ufffd"  # of a character; at the end of an answer it is streamed, or not, as it comes
MLLM, DIT = ("mllm", "engine"), ("dit", "worker")


@pytest.fixture(scope="module")
def bare(tiny_omnigen2: Path) -> Any:
    return bare_omnigen2(tiny_omnigen2)


@pytest.fixture(scope="module")
def published(tiny_omnigen2: Path) -> Recorded:
    return recorded(tiny_omnigen2)


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that is written once an image of `STUCK_SIZE`, which has no end, is decoded."""
    return tmp_path_factory.mktemp("omnigen2") / "decoding"


@pytest.fixture(scope="module")
def server(tiny_omnigen2: Path, decoding: Path) -> Iterator[TinyServer]:
    """Its name makes sure that nothing is left of each test's requests."""
    options = ["--stage", "dit.pipeline_class=support.faults.stuck_decoders.StuckOmniGen2"]
    options += ["--stage", f"dit.environment.{HAS_BEGUN}={decoding}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        with running_server(str(tiny_omnigen2), decoding.parent / "log", *options) as running:
            yield running


async def test_requests_of_several_lengths_sizes_and_images_equal_the_published_code(
    server: TinyServer, published: Recorded
) -> None:
    alone = await draw(server, DRAWINGS[-1])
    together = await asyncio.gather(*(draw(server, one) for one in DRAWINGS))
    for answer, drawing in zip([alone, *together], [DRAWINGS[-1], *DRAWINGS], strict=True):
        made = pictures_of(answer)
        assert len(made) == len(published.drawings[drawing.name])
        for picture, wanted in zip(made, published.drawings[drawing.name], strict=True):
            assert is_same(picture, wanted), drawing.name


async def test_one_stage_makes_the_same_images(
    tiny_omnigen2: Path, published: Recorded, tmp_path: Path
) -> None:
    graph, made = "omnigen2_image.yaml", f"{OmniGen2Pipeline.__module__}.OmniGen2Pipeline"
    with picture_server(
        graph, tiny_omnigen2, tmp_path, pipeline_class=made, max_megapixels=4
    ) as alone:
        answers = await asyncio.gather(*(draw(alone, one) for one in DRAWINGS))
    for answer, drawing in zip(answers, DRAWINGS, strict=True):
        for picture, wanted in zip(
            pictures_of(answer), published.drawings[drawing.name], strict=True
        ):
            assert is_same(picture, wanted), drawing.name


async def test_chats_are_answered_by_words_or_a_picture_as_by_the_published_code(
    server: TinyServer, published: Recorded, tiny_omnigen2: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_omnigen2 / "processor")
    more = {"return_token_ids": True}
    asked = (choice(server, messages_of(one), **more, **chat_fields(one)) for one in CHATS)
    for found, chat in zip(await asyncio.gather(*asked), CHATS, strict=True):
        assert tokenizer.decode(found["token_ids"]) == published.texts[chat.name], chat.name
        words = published.texts[chat.name].removesuffix(PICTURE)
        # Half a character at the end is never streamed.
        assert (found["message"]["content"] or "") == words.removesuffix("\ufffd"), chat.name
        wanted = list(published.chats.get(chat.name, ()))
        made = drawn_in(found["message"])
        assert len(made) == len(wanted), chat.name
        assert bool(words) != bool(made)
        for picture, one in zip(made, wanted, strict=True):
            assert is_same(picture, one), chat.name


@pytest.mark.repeat  # of tests/stages/omnigen2/test_batches.py
async def test_requests_with_texts_of_several_lengths_share_forwards(
    server: TinyServer, bare: Any
) -> None:
    num_steps = 30
    prompts = ["a cat", "a red fox", LONG, "an owl that sleeps"]
    asked = [ask(server, one, 7, num_inference_steps=num_steps) for one in prompts]
    made = await denoised_at_once(server, "mllm", asked)
    for prompt, found in zip(prompts, made.answers, strict=True):
        (picture,) = pictures_of(found)
        assert is_same(picture, expected(bare, prompt, 7, num_inference_steps=num_steps)[0])
    alone = len(prompts) * num_steps  # both sides of the guidance are one forward
    assert made.num_requests == alone
    assert made.num_forwards < alone


@pytest.mark.repeat
@pytest.mark.parametrize(
    ("chat", "more"),
    [
        (CHATS[0], {}),
        (CHATS[0], {"logit_bias": NEVER_BEGINS, "ignore_eos": True, "max_tokens": 40}),
        (CHATS[3], {"logit_bias": NEVER_BEGINS, "ignore_eos": True, "max_tokens": 40}),
        (CHATS[1], {}),
        (CHATS[4], {}),
    ],
    ids=["few words", "words", "words of an image", "a picture", "a picture of an image"],
)
async def test_a_streamed_answer_equals_the_whole_one(
    chat: Drawing, more: dict[str, Any], server: TinyServer, published: Recorded
) -> None:
    asked = {"return_token_ids": True, **chat_fields(chat), **more}
    whole = await choice(server, messages_of(chat), **asked)
    with in_slices(pid_of(server, *MLLM), [server.process.pid]):
        parts = await streamed(server, messages_of(chat), **asked)
    assert parts["token_ids"] == whole["token_ids"]
    assert parts["finish_reason"] == whole["finish_reason"]
    said, once = (one["message"]["content"] or "" for one in (parts, whole))
    assert said.rstrip(HALF) == once.rstrip(HALF)
    made, wanted = drawn_in(parts["message"]), published.chats.get(chat.name, ())
    assert len(made) == len(wanted)
    assert (parts["num_pieces"] > 0) == (not made)
    assert parts["num_pieces"] > 1 or "ignore_eos" not in more
    for picture, other, one in zip(made, drawn_in(whole["message"]), wanted, strict=True):
        assert is_same(picture, other)
        assert is_same(picture, one)


async def test_a_picture_can_be_talked_about(server: TinyServer, published: Recorded) -> None:
    first = {"role": "user", "content": CHATS[1].prompt}
    drawn = await answered(server, [first], **chat_fields(CHATS[1]))
    (picture,) = drawn_in(drawn)
    assert is_same(picture, published.chats[CHATS[1].name][0])
    (url,) = (one["image_url"] for one in drawn["images"])

    def then(given: str) -> list[Any]:
        parts = [{"type": "image_url", "image_url": {"url": given}}]
        said = {"role": "assistant", "content": "Here it is."}
        last = {"role": "user", "content": [*parts, {"type": "text", "text": "who?"}]}
        return [first, said, last]

    words = {"modalities": ["text"], "max_tokens": 12}
    about = await answered(server, then(url["url"]), **words)
    assert about["content"]
    assert not about.get("images")
    other = await answered(server, then(url_of(file_of(noise((64, 64), 9)))), **words)
    assert other["content"] != about["content"]


async def test_a_picture_is_made_of_the_images_of_its_chat(server: TinyServer) -> None:
    begins = {"logit_bias": BEGINS, "seed": 1}
    chats = (
        Drawing("one", "make it blue", given=((90, 70),)),
        Drawing("another", "make it blue", given=((90, 70),)),
        Drawing("two", "both", SQUARE, ((64, 96), (40, 64))),
        Drawing("transparent", "make it blue", given=((90, 70),)),
        Drawing("over white", "make it blue", given=((90, 70),)),
    )
    others = [messages_of(one) for one in chats]
    transparent, over_white = noise((90, 70), 6), Image.new("RGB", (90, 70), (255, 255, 255))
    alpha = noise((90, 70), 7).convert("L")
    over_white.paste(transparent, mask=alpha)
    transparent.putalpha(alpha)
    for number, one in {1: noise((90, 70), 5), 3: transparent, 4: over_white}.items():
        others[number][0]["content"][0]["image_url"]["url"] = url_of(file_of(one))
    more = [begins | chat_fields(one) | {"seed": 1} for one in chats]
    asked = (answered(server, m, **f) for m, f in zip(others, more, strict=True))
    pictures = [drawn_in(message)[0] for message in await asyncio.gather(*asked)]
    assert [one.shape[:2] for one in pictures] == [(64, 80)] * 2 + [(64, 64)] + [(64, 80)] * 2
    assert not is_same(pictures[0], pictures[1])
    assert is_same(pictures[3], pictures[4])


@pytest.mark.parametrize("chat", CHATS[:2], ids=lambda one: one.name)
async def test_a_response_is_words_or_a_picture(
    chat: Drawing, server: TinyServer, published: Recorded
) -> None:
    tool = {"type": "image_generation", "size": "64x64", "num_inference_steps": STEPS}
    body = {"input": chat.prompt, "seed": chat.seed, "temperature": 0, "tools": [tool]}
    async with httpx.AsyncClient(timeout=600) as client:
        found = (await client.post(f"{server.url}/v1/responses", json=body)).json()
    made = [one for one in found["output"] if one["type"] == "image_generation_call"]
    said = [part["text"] for one in found["output"] for part in one.get("content") or ()]
    wanted = list(published.chats.get(chat.name, ()))
    assert len(made) == len(wanted)
    assert bool("".join(said)) == (not made)
    for call, one in zip(made, wanted, strict=True):
        assert is_same(pixels_of(call["result"]), one)


async def test_a_picture_alone_is_made_whatever_the_model_would_say(
    server: TinyServer, bare: Any
) -> None:
    more = {"modalities": ["image"], "size": "64x64", "seed": 3, "num_inference_steps": 3}
    message = await answered(server, [{"role": "user", "content": CHATS[0].prompt}], **more)
    (picture,) = drawn_in(message)
    assert is_same(picture, expected(bare, CHATS[0].prompt, 3)[0])


async def test_a_chat_with_more_images_than_a_picture_is_made_of_is_refused(
    server: TinyServer,
) -> None:
    body = {"messages": messages_of(Drawing("six", "a bird", given=((32, 32),) * 6))}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/chat/completions"
        found = await client.post(url, json={**body, "modalities": ["text", "image"]})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "messages")


async def test_every_step_is_reported(server: TinyServer) -> None:
    await check_every_step_is_reported(server)


@pytest.mark.parametrize(
    ("drawing", "param", "message"),
    [
        (Drawing("six", "all", (64, 64), ((64, 64),) * 6), "image", "at most 5"),
        (Drawing("size", "a cat", (100, 64)), "size", "16"),
        (Drawing("thin", "a cat", given=((2000, 20),)), None, "too narrow"),
    ],
    ids=lambda one: one.name if isinstance(one, Drawing) else "",
)
async def test_what_cannot_be_drawn_is_refused(
    drawing: Drawing, param: str | None, message: str, server: TinyServer
) -> None:
    answer = await draw(server, drawing)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


async def drawn_of_images(server: TinyServer, seed: int) -> httpx.Response:
    return await draw(server, DRAWINGS[-1 - seed % 2])


async def answered_by_words(server: TinyServer, seed: int) -> httpx.Response:
    more = {"logit_bias": NEVER_BEGINS, "ignore_eos": True}
    return await chat_with(server, messages_of(CHATS[0]), max_tokens=1500, seed=seed, **more)


async def drawn_without_end(server: TinyServer, seed: int) -> httpx.Response:
    return await ask(server, "a cat", seed, **ENDLESS)


async def answered_by_a_picture_without_end(server: TinyServer, seed: int) -> httpx.Response:
    more = {"logit_bias": BEGINS, **ENDLESS_CHAT}
    return await chat_with(server, messages_of(CHATS[0]), seed=seed, **more)


@pytest.mark.parametrize(
    ("send", "within", "still", "counter"),
    [
        (drawn_of_images, "mllm", MLLM, ""),
        (answered_by_words, "mllm", None, MADE_IDS),
        (drawn_without_end, "dit", None, MADE_STEPS),
        (answered_by_a_picture_without_end, "dit", None, MADE_STEPS),
    ],
    ids=["its texts", "words of a chat", "its steps", "the picture of a chat"],
)
async def test_clients_that_hang_up_leave_nothing(
    send: Callable[[TinyServer, int], Coroutine[Any, Any, httpx.Response]],
    within: str,
    still: Process | None,
    counter: str,
    server: TinyServer,
    bare: Any,
) -> None:
    await all_leave(server, partial(send, server), within, still, counter)
    (picture,) = pictures_of(await ask(server, "a cat", 1))
    assert is_same(picture, expected(bare, "a cat", 1)[0])


@pytest.mark.parametrize(
    "killed", [MLLM, pytest.param(DIT, marks=pytest.mark.repeat)], ids=lambda one: one[0]
)
async def test_a_killed_stage_is_its_requests_error_and_starts_again(
    killed: Process, server: TinyServer, bare: Any
) -> None:
    await check_a_killed_stage(server, *killed, bare)


@pytest.mark.parametrize("killed", [pytest.param(MLLM, marks=pytest.mark.repeat), DIT], ids=str)
async def test_a_stage_may_be_killed_while_texts_are_encoded(
    killed: Process, server: TinyServer, bare: Any
) -> None:
    await check_a_killed_stage(server, *killed, bare, still=MLLM)


async def test_a_stage_may_be_killed_while_it_decodes(
    server: TinyServer, bare: Any, decoding: Path
) -> None:
    async def send(seed: int) -> httpx.Response:
        return await ask(server, "a cat", seed, size="{}x{}".format(*STUCK_SIZE))

    await check_a_killed_stage(server, *DIT, bare, send=send, also=decoding.exists)


@pytest.mark.repeat
@pytest.mark.parametrize(
    ("killed", "within", "counter", "more"),
    [
        (MLLM, "mllm", MADE_IDS, {"logit_bias": NEVER_BEGINS, "ignore_eos": True}),
        (DIT, "dit", MADE_STEPS, {"logit_bias": BEGINS, **ENDLESS_CHAT}),
        (MLLM, "dit", MADE_STEPS, {"logit_bias": BEGINS, **ENDLESS_CHAT}),
    ],
    ids=["words", "its picture", "its picture, by the model of words"],
)
async def test_a_stage_may_be_killed_while_a_chat_is_answered(
    killed: Process,
    within: str,
    counter: str,
    more: dict[str, Any],
    server: TinyServer,
    bare: Any,
) -> None:
    async def send(seed: int) -> httpx.Response:
        said = [{"role": "user", "content": "hello"}]
        return await chat_with(server, said, **{"max_tokens": 1500, **more})

    await check_a_killed_stage(server, *killed, bare, send=send, within=within, counter=counter)
