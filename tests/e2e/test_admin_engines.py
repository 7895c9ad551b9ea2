"""Control of running vLLM engines: what vLLM offers on a CPU, and clear words for the rest."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.prompts import plain
from support.reference import Reference
from support.server import ADMIN_KEY, TinyServer, assert_same_sound

pytestmark = pytest.mark.engine

HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def admin(server: TinyServer, path: str, /, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return httpx.post(f"{server.url}/admin/{path}", json=body, headers=headers, timeout=120)


def test_an_engine_without_sleep_mode_says_what_it_needs(server: TinyServer) -> None:
    refused = admin(server, "sleep", stages=["thinker", "talker"])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_command")
    assert "enable_sleep_mode" in error["message"]
    assert httpx.get(f"{server.url}/ready").status_code == 200


async def test_a_profile_is_written_under_its_prefix(server: TinyServer, profiles: Path) -> None:
    begun = admin(server, "profile/start", prefix="hello")
    assert begun.json() == {"stages": {"thinker": {"folder": str(profiles)}}}, begun.text
    await server.ask(HELLO)
    assert admin(server, "profile/stop").json() == begun.json()
    traces = {file.name: file.read_bytes() for file in profiles.glob("*.gz")}  # noqa: ASYNC240
    written = [name for name, data in traces.items() if b"aten::" in gzip.decompress(data)]
    assert any(name.startswith("hello") for name in written), list(traces)


async def test_another_checkpoints_weights_answer_as_that_one_and_the_own_ones_as_before(
    server: TinyServer, tiny_checkpoint: Path, tiny_checkpoints: Callable[[int], Path]
) -> None:
    """The thinker's text is transformers'; the same codes sound as the other vocoder makes them."""
    before, other = await server.ask(HELLO), tiny_checkpoints(1)
    question = plain("hello", ("user", HELLO[0]["content"]))
    expected = Reference(str(other)).answer(question, 16, 1).text
    try:
        obeyed(server, "load_weights", stages=["thinker"], path=str(other))
        assert (await server.ask(HELLO)).text == expected != before.text
        obeyed(server, "load_weights", stages=["thinker"], path=str(tiny_checkpoint))
        obeyed(server, "load_weights", stages=["code2wav"], path=str(other))
        revoiced = await server.ask(HELLO)
        assert (revoiced.text, revoiced.codes.tolist()) == (before.text, before.codes.tolist())
        assert np.abs(revoiced.pcm.astype(int) - before.pcm).max() > 100
    finally:
        for name in ("thinker", "code2wav"):
            obeyed(server, "load_weights", stages=[name], path=str(tiny_checkpoint))
    again = await server.ask(HELLO)
    assert (again.text, again.codes.tolist()) == (before.text, before.codes.tolist())
    assert_same_sound(again.pcm, before.pcm)


async def test_code2wav_sleeps_while_texts_are_answered_and_sounds_the_same_afterwards(
    server: TinyServer,
) -> None:
    before = await server.ask(HELLO)
    for level in (1, 2):
        asleep = obeyed(server, "sleep", stages=["code2wav"], level=level)
        assert asleep == {"code2wav": {"asleep": ["weights", "kv_cache"]}}
        refused = chat(server, server.body(HELLO))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
        text = {"model": server.model, "messages": HELLO, "temperature": 0}
        text["max_completion_tokens"] = 16
        answered = chat(server, text)
        assert answered.json()["choices"][0]["message"]["content"] == before.text
        assert obeyed(server, "wake", stages=["code2wav"]) == {"code2wav": {"asleep": []}}
        assert_same_sound((await server.ask(HELLO)).pcm, before.pcm)


def chat(server: TinyServer, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def obeyed(server: TinyServer, path: str, /, **body: Any) -> Any:
    answer = admin(server, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["stages"]


@pytest.mark.parametrize(
    ("stage", "path", "body", "said"),
    [
        ("talker", "load_weights", {}, "tables that it made from its checkpoint"),
        ("talker", "lora/add", {"name": "a", "path": "/a"}, "does not know the command add_lora"),
        ("thinker", "lora/add", {"name": "a", "path": "/a"}, "no enable_lora: true"),
        ("thinker", "load_weights", {"path": "/none"}, "/none is no folder"),
    ],
)
def test_what_a_stage_cannot_is_refused_by_name(
    stage: str, path: str, body: dict[str, Any], said: str, server: TinyServer
) -> None:
    refused = admin(server, path, stages=[stage], **body)
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]
