"""Strange requests to the real server: a clear refusal each, and no engine is the worse for it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.api.doors import ONE_SHOT
from support.api.prompts import question, text
from support.hostile.bad_input import BAD, REFUSED_BY_STAGES
from support.hostile.bad_parts import MODEL, Bad
from support.hostile.dear_bodies import REFUSED_BY_A_STAGE, Dear
from support.oracles.reference import Reference
from support.servers.server import TinyServer, assert_same_sound

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client(server: TinyServer) -> Iterator[httpx.Client]:
    # A connection kept open would be a descriptor left over.
    with httpx.Client(base_url=server.url, timeout=600, limits=ONE_SHOT) as connected:
        yield connected


@pytest.mark.parametrize("bad", REFUSED_BY_STAGES, ids=lambda bad: bad.name)
def test_what_only_a_stage_can_refuse_is_refused_by_name(
    bad: Bad, server: TinyServer, client: httpx.Client
) -> None:
    before = {name: stage["generation"] for name, stage in server.health().items()}
    body = (
        bad.body
        if len(bad.body) > 1 << 20
        else bad.body.replace(MODEL.encode(), server.model.encode())
    )
    headers = {"content-type": "application/json"}
    response = client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == bad.status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert bad.param is None or error["param"] == bad.param, error
    assert before == {name: stage["generation"] for name, stage in server.health().items()}


@pytest.mark.parametrize("dear", REFUSED_BY_A_STAGE, ids=lambda dear: dear.name)
def test_a_body_that_is_dear_to_a_stage_is_refused_in_short(
    dear: Dear, server: TinyServer, client: httpx.Client, server_log: Path
) -> None:
    before, logged = server.generations(), server_log.stat().st_size
    headers = {"content-type": dear.content_type}
    response = client.post(dear.path, content=dear.make(), headers=headers)
    assert response.status_code == dear.status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert len(response.content) < 2048
    assert server_log.stat().st_size - logged < 16 << 10
    assert before == server.generations()


@pytest.mark.parametrize("marker", ["<|im_end|>", "<tts_pad>", "<|vision_start|>"])
async def test_a_marker_that_a_user_writes_is_answered_as_the_reference_answers(
    marker: str, server: TinyServer, reference: Reference
) -> None:
    asked = question("marker", [text(f"Say {marker} now.")])
    answer = reference.answer(asked, 16, 40)
    reply = await server.ask(asked.messages)
    assert reply.text == answer.text
    assert np.array_equal(reply.codes, answer.codes)
    assert np.abs(reply.pcm / 32767 - answer.pcm).max() < 1e-4


@pytest.mark.parametrize("marker", ["<|image_pad|>", "<|audio_pad|>", "<|video_pad|>"])
async def test_a_medium_that_is_only_written_is_spoken_about_like_text(
    marker: str, server: TinyServer
) -> None:
    """transformers' processor refuses these; the talker waited for hidden rows for ever."""
    reply = await server.ask(question("marker", [text(f"Say {marker} now.")]).messages)
    assert len(reply.codes) > 0


async def test_good_answers_go_on_beside_bad_requests(server: TinyServer) -> None:
    messages = question("fine", [text("All well?")]).messages
    alone = await server.ask(messages)
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        url = "/v1/chat/completions"
        headers = {"content-type": "application/json"}
        refused = [client.post(url, content=bad.body, headers=headers) for bad in BAD[::7]]
        answering = asyncio.create_task(server.ask(messages))
        await asyncio.gather(*refused)
        again = await answering
    assert again.codes.tolist() == alone.codes.tolist()
    assert_same_sound(again.pcm, alone.pcm)
