"""Answers of text, speech and an image by one graph: each equals what its stages make alone."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from openai import AsyncOpenAI
from support.api.prompts import QUESTIONS
from support.faults.chaos import ready_again
from support.faults.shared_forwards import pid_of
from support.faults.stopping import stopped
from support.media.pictures import pixels_of
from support.oracles.reference import Reference
from support.servers.image_requests import STEPS, expected, is_same
from support.servers.server import Reply, TinyServer, assert_same_sound, running_server
from support.servers.snapshots import health_by_now
from support.servers.warm_up import warm_up

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine

MAX_TOKENS, MAX_FRAMES = 16, 40
ALL = ["text", "audio", "image"]
# The tiny model likes white space, of which JSON may have any amount; a byte is a token.
NO_SPACE: dict[str, int] = {str(byte): -100 for byte in b"\t\n\r "}
IMAGE = {"size": "64x64", "num_inference_steps": STEPS}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "generate_image",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"prompt": {"type": "string", "enum": ["hat"]}},
            "required": ["prompt"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def mixed(
    tiny_checkpoint: Path, tiny_qwen_image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    """The tiny Qwen3-Omni with the edge and the stage that qwen3_omni_qwen_image.yaml adds."""
    folder = tmp_path_factory.mktemp("mixed")
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    shipped = yaml.safe_load((GRAPHS / "qwen3_omni_qwen_image.yaml").read_text())
    dit = {"kind": shipped["stages"]["dit"]["kind"], "model": str(tiny_qwen_image)}
    graph["stages"]["dit"] = {**dit, "engine": {"warm_up": {"height": 64, "width": 64}}}
    graph["edges"].append(shipped["edges"][-1])
    graph["outputs"] = shipped["outputs"]
    graph["deadlines"] = shipped["deadlines"]
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    with running_server(str(path), folder / "log", "--model", str(tiny_checkpoint)) as server:
        asyncio.run(warm_up(server))
        more = {"modalities": ALL, **IMAGE}
        asyncio.run(server.ask(QUESTIONS[0].messages, **more))
        yield server


def images_of(message: Any) -> list[npt.NDArray[np.uint8]]:
    urls = [item["image_url"]["url"] for item in message.get("images") or ()]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [pixels_of(url.partition(",")[2]) for url in urls]


def whole_images(reply: Reply) -> list[npt.NDArray[np.uint8]]:
    return images_of(reply.raw["choices"][0]["message"])


def streamed_images(reply: Reply) -> list[npt.NDArray[np.uint8]]:
    deltas = [choice["delta"] for event in reply.raw for choice in event["choices"]]
    return [image for delta in deltas for image in images_of(delta)]


async def test_text_speech_and_image_equal_each_stage_alone_eight_at_once(
    mixed: TinyServer, reference: Reference, bare: Any
) -> None:
    asked = QUESTIONS[:4]
    more = {"modalities": ALL, **IMAGE}
    replies = await asyncio.gather(
        *(mixed.ask(one.messages, seed=seed, **more) for seed, one in enumerate(asked)),
        *(mixed.stream(one.messages, seed=seed, **more) for seed, one in enumerate(asked)),
    )
    for seed, question in enumerate(asked):
        answer = reference.answer(question, MAX_TOKENS, MAX_FRAMES)
        (wanted,) = expected(bare, answer.text, seed)
        whole, streamed = replies[seed], replies[seed + len(asked)]
        for reply, images in (
            (whole, whole_images(whole)),
            (streamed, streamed_images(streamed)),
        ):
            assert reply.text == answer.text
            assert np.array_equal(reply.codes, answer.codes)
            assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4
            assert len(images) == 1
            assert is_same(images[0], wanted)
        assert not is_same(wanted, expected(bare, "something else", seed)[0])


async def test_text_and_image_without_speech(mixed: TinyServer, bare: Any) -> None:
    more: dict[str, Any] = {"modalities": ["text", "image"], "audio": None, "return_codes": None}
    more |= {"stage_params": None, "seed": 5, **IMAGE}
    body = mixed.body(QUESTIONS[0].messages, **more)
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{mixed.url}/v1/chat/completions"
        alone = (await client.post(url, json={**body, "modalities": ["text"]})).json()
        before = await asyncio.to_thread(health_by_now, mixed)
        answer = (await client.post(url, json=body)).json()
    (choice,) = answer["choices"]
    (image,) = images_of(choice["message"])
    assert is_same(image, expected(bare, choice["message"]["content"], 5)[0])
    (without,) = alone["choices"]
    assert choice["message"]["content"] == without["message"]["content"]
    assert choice["finish_reason"] == without["finish_reason"]
    assert answer["usage"]["completion_tokens_details"]["image_tokens"] == 16
    assert answer["usage"]["total_tokens"] == alone["usage"]["total_tokens"] + 16
    after = await asyncio.to_thread(health_by_now, mixed)
    assert after["dit"]["requests_total"] == before["dit"]["requests_total"] + 1
    assert after["talker"]["requests_total"] == before["talker"]["requests_total"]


async def test_a_response_has_an_image_of_its_words(mixed: TinyServer, bare: Any) -> None:
    tool = {"type": "image_generation", **IMAGE}
    body = {"input": "Say hello.", "seed": 5, "temperature": 0, "max_output_tokens": MAX_TOKENS}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{mixed.url}/v1/responses"
        alone = (await client.post(url, json=body)).json()
        answer = (await client.post(url, json={**body, "tools": [tool]})).json()
    message, call = answer["output"]
    assert message["content"] == alone["output"][0]["content"]
    assert (call["type"], call["status"]) == ("image_generation_call", "completed")
    said = message["content"][0]["text"]
    assert is_same(pixels_of(call["result"]), expected(bare, said, 5)[0])
    assert answer["status"] == alone["status"]
    assert answer["usage"]["output_tokens"] == alone["usage"]["output_tokens"] + 16


async def test_text_alone_runs_neither_talker_nor_image_stage(mixed: TinyServer) -> None:
    before = await asyncio.to_thread(health_by_now, mixed)
    more: dict[str, Any] = {"modalities": ["text"], "audio": None, "return_codes": None}
    body = mixed.body(QUESTIONS[0].messages, **more, stage_params=None)
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{mixed.url}/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"]
    after = await asyncio.to_thread(health_by_now, mixed)
    for name, more_requests in (("thinker", 1), ("talker", 0), ("code2wav", 0), ("dit", 0)):
        assert after[name]["requests_total"] == before[name]["requests_total"] + more_requests


async def test_words_and_sound_stream_while_the_image_is_made_and_its_end_comes_last(
    mixed: TinyServer,
) -> None:
    kinds = []
    with ExitStack() as until_data:
        until_data.enter_context(stopped(pid_of(mixed, "dit", "worker")))
        async for event in mixed.events(QUESTIONS[0].messages, modalities=ALL, **IMAGE):
            for choice in event["choices"]:
                audio = choice["delta"].get("audio") or {}
                kinds += [name for name in ("transcript", "data") if audio.get(name)]
                kinds += ["image"] * len(choice["delta"].get("images") or ())
                kinds += ["end"] if choice["finish_reason"] else []
            if "data" in kinds:
                until_data.close()
    assert kinds.count("image") == kinds.count("end") == 1
    assert kinds[-1] == "end"
    assert kinds.index("transcript") < kinds.index("data") < kinds.index("image")


@pytest.fixture
async def sdk(mixed: TinyServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{mixed.url}/v1",
        api_key="none",
        max_retries=0,
        default_headers={"Connection": "close"},  # a kept one is a descriptor left over
    ) as client:
        yield client


async def test_a_call_of_the_image_tool_says_what_is_drawn(
    mixed: TinyServer, sdk: AsyncOpenAI, bare: Any
) -> None:
    made: Any = await sdk.chat.completions.create(
        model=mixed.model,
        messages=[{"role": "user", "content": "Draw."}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "generate_image"}},
        max_completion_tokens=200,
        temperature=0,
        seed=2,
        logit_bias=NO_SPACE,
        extra_body={"modalities": ["text", "image"], **IMAGE},
    )
    (call,) = made.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"prompt": "hat"}
    (image,) = images_of(made.choices[0].message.model_dump())
    assert is_same(image, expected(bare, "hat", 2)[0])


async def test_without_a_call_of_the_allowed_tool_nothing_is_drawn(
    mixed: TinyServer, sdk: AsyncOpenAI
) -> None:
    made: Any = await sdk.chat.completions.create(
        model=mixed.model,
        messages=[{"role": "user", "content": "Hello."}],
        tools=[TOOL],
        max_completion_tokens=4,
        temperature=0,
        extra_body={"modalities": ["text", "image"], **IMAGE},
    )
    assert made.choices[0].message.content
    assert images_of(made.choices[0].message.model_dump()) == []


async def test_what_cannot_be_drawn_is_refused_before_it_begins(mixed: TinyServer) -> None:
    before = await asyncio.to_thread(health_by_now, mixed)
    async with httpx.AsyncClient(timeout=600) as client:
        for more, param in (
            ({"size": "8x8"}, "size"),
            ({"num_inference_steps": 0}, "num_inference_steps"),
            ({"n": 2}, "n"),
            ({"modalities": ["image"]}, "modalities"),
        ):
            body = mixed.body(QUESTIONS[0].messages, **{"modalities": ALL, **IMAGE, **more})
            answer = await client.post(f"{mixed.url}/v1/chat/completions", json=body)
            assert answer.status_code == 400, more
            assert answer.json()["error"]["param"] == param
        url = f"{mixed.url}/v1/images/generations"
        answer = await client.post(url, json={"prompt": "a cat"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_model")
    after = await asyncio.to_thread(health_by_now, mixed)
    assert after["thinker"]["requests_total"] == before["thinker"]["requests_total"]


async def test_a_killed_image_stage_fails_its_requests_and_no_others(mixed: TinyServer) -> None:
    await ready_again(mixed)
    alone = await mixed.ask(QUESTIONS[0].messages)
    endless = {"modalities": ALL, "size": "512x512", "num_inference_steps": 1000}
    drawn = [
        asyncio.create_task(mixed.ask(QUESTIONS[0].messages, seed=seed, **endless))
        for seed in range(2)
    ]
    while mixed.health()["dit"]["running"] < len(drawn):
        assert not any(task.done() for task in drawn)
        await asyncio.sleep(0.02)
    more: dict[str, Any] = {"stage_params": {"talker": {"temperature": 0, "max_tokens": 200}}}
    spoken = asyncio.create_task(mixed.ask(QUESTIONS[0].messages, **more))
    os.kill(pid_of(mixed, "dit", "worker"), signal.SIGKILL)
    for task in drawn:
        with pytest.raises(AssertionError, match="stage_unavailable"):
            await task
    assert (await spoken).text == alone.text
    again = await mixed.ask(QUESTIONS[0].messages)
    assert np.array_equal(again.codes, alone.codes)
    assert_same_sound(again.pcm, alone.pcm)
    await ready_again(mixed)
    generations = {name: stage["generation"] for name, stage in mixed.health().items()}
    assert generations == {"thinker": 1, "talker": 1, "code2wav": 1, "dit": 2}
