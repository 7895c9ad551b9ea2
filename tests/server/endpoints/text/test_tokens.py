"""Tokens: what is refused, what the entry stage gets, and what comes back."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.serving import EMBEDDING, MODEL, RunningGateway, running_gateway

from omnistage.server.http.access.keys import Keys
from omnistage.server.tasks.chat.token_fields import MAX_CHARACTERS
from omnistage.stages.messages.body import Detokenize, Tokenize

HELLO = [{"role": "user", "content": "Hi."}]


def refused(client: httpx.Client, path: str, **fields: Any) -> tuple[str | None, str | None]:
    response = client.post(path, json={"model": MODEL, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["code"]


def test_a_prompt_and_a_conversation_have_tokens_that_are_vllm_s_answer(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    expected = {"count": 3, "max_model_len": 128, "tokens": [72, 105, 46], "token_strs": None}
    assert client.post("/tokenize", json={"prompt": "Hi."}).json() == expected
    asked = {"messages": HELLO, "return_token_strs": True, "add_generation_prompt": False}
    answer = client.post("/tokenize", json=asked).json()
    assert answer == {**expected, "token_strs": ["H", "i", "."]}
    request = gateway.stages.stages["thinker"].last_request
    assert request.outputs == ["text"]
    assert request.body == Tokenize(asked)


def test_tokens_have_a_text(gateway: RunningGateway, client: httpx.Client) -> None:
    response = client.post("/detokenize", json={"model": MODEL, "tokens": [72, 105, 46]})
    assert response.json() == {"prompt": "Hi."}
    request = gateway.stages.stages["thinker"].last_request
    assert request.body == Detokenize([72, 105, 46])


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "invalid_value"),
        ({"prompt": "x", "messages": HELLO}, "prompt", "invalid_value"),
        ({"prompt": "x", "tools": []}, "tools", "invalid_value"),
        ({"prompt": "x" * (MAX_CHARACTERS + 1)}, "prompt", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "x" * (MAX_CHARACTERS + 1)}]},
            "messages",
            "invalid_value",
        ),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": HELLO, "tools": [{}]}, "tools[0].type", "invalid_value"),
        ({"prompt": "x", "chat_template": "y"}, "chat_template", "unsupported_parameter"),
        (
            {"messages": HELLO, "continue_final_message": True},
            "add_generation_prompt",
            "invalid_value",
        ),
        (
            {"messages": HELLO, "chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs.tokenize",
            "unsupported_parameter",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_would_have_no_effect_is_refused(
    fields: dict[str, Any], param: str, code: str, client: httpx.Client
) -> None:
    assert refused(client, "/tokenize", **fields) == (param, code)


@pytest.mark.parametrize("tokens", [None, [], ["x"], [-1], [1.5], [1 << 31]])
def test_what_are_no_tokens_is_refused(tokens: Any, client: httpx.Client) -> None:
    param, code = refused(client, "/detokenize", tokens=tokens)
    assert (param or "").startswith("tokens")
    assert code == "invalid_value"


def test_unknown_fields_are_warned_of(client: httpx.Client) -> None:
    response = client.post("/tokenize", json={"prompt": "x", "zork": 1})
    assert response.headers["x-omnistage-warning"] == "unknown fields without effect: zork"
    assert client.post("/tokenize", json={"prompt": "x", "model": "y"}).status_code == 404


def test_a_model_without_a_tokenizer_of_its_own_is_told(images_client: httpx.Client) -> None:
    for path, asked in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert refused(images_client, path, **asked) == (None, "unsupported_model")


def test_they_want_a_key_and_an_embedding_model_has_them_too(tmp_path: Path) -> None:
    key = {"Authorization": "Bearer sk-ann"}
    with (
        running_gateway(tmp_path, EMBEDDING, keys=Keys(["sk-ann"])) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        for path, asked in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            assert client.post(path, json=asked).status_code == 401
            assert client.post(path, json=asked, headers=key).status_code == 200
        assert client.get("/version").status_code == 200
