"""Text completions: what is refused, and what the entry stage gets."""

from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.fake_stages import WORDS
from support.gateway import MODEL, RunningGateway, running_gateway

from omnistage.server.chat.fields import IGNORED
from omnistage.server.chat.schema import COMPLETION_DONE, CompletionRequest

URL = "/v1/completions"
TEXT = "".join(WORDS)
IMAGES_ONLY = {
    "model": MODEL,
    "stages": {"dit": {"kind": "diffusers"}},
    "outputs": {"image": "dit"},
}


def body_of(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "words", **more}


def refused(client: httpx.Client, body: dict[str, Any]) -> tuple[str | None, str | None]:
    response = client.post(URL, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["code"]


def test_whole_and_streamed_answers_are_one(openai: OpenAI, client: httpx.Client) -> None:
    completion = openai.completions.create(**body_of())
    (choice,) = completion.choices
    assert choice.text == TEXT
    assert completion.id.startswith("cmpl-")
    assert completion.usage is not None
    assert completion.usage.total_tokens == 8
    with client.stream("POST", URL, json=body_of(stream=True)) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all('"usage"' not in line for line in lines)


def test_the_stage_gets_the_prompt_and_openai_s_number_of_tokens(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    body = body_of(prompt=[[1, 2], [3]], n=2, best_of=2, top_k=3, stop="x", user="me")
    assert client.post(URL, json=body).status_code == 200
    request = gateway.stages.stages["thinker"].last_request
    assert request.outputs == ["text"]
    assert request.body == {
        "prompt": [[1, 2], [3]],
        "n": 2,
        "top_k": 3,
        "stop": "x",
        "max_tokens": 16,
    }


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], 3, [3, "x"], [[1], 2], [-1], [1.5], [True], ["x"] * 129]
)
def test_what_is_no_prompt_is_refused(prompt: Any, client: httpx.Client) -> None:
    assert refused(client, body_of(prompt=prompt)) == ("prompt", "invalid_value")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"echo": True, "return_token_ids": True}, "echo", "unsupported_parameter"),
        ({"prompt": ["x"] * 50, "n": 3}, "n", "invalid_value"),
        ({"n": 2, "temperature": 0}, "n", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"response_format": {"type": "poem"}}, "response_format.type", "invalid_value"),
        ({"min_tokens": 17}, "min_tokens", "invalid_value"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    fields: dict[str, Any], param: str, code: str, client: httpx.Client
) -> None:
    assert refused(client, body_of(**fields)) == (param, code)


@pytest.mark.parametrize("name", sorted(CompletionRequest.refused.keys() - COMPLETION_DONE))
def test_a_refused_field_is_refused_by_name(name: str, client: httpx.Client) -> None:
    assert refused(client, body_of(**{name: "x"})) == (name, "unsupported_parameter")


def test_unknown_and_ignored_fields(client: httpx.Client) -> None:
    ignored = dict.fromkeys(IGNORED, "x")
    assert not (COMPLETION_DONE | CompletionRequest.refused.keys()) & IGNORED
    response = client.post(URL, json=body_of(**ignored, zork=3))
    assert response.headers["x-omnistage-warning"] == "unknown fields without effect: zork"


def test_a_model_of_pictures_completes_nothing(tmp_path: Any) -> None:
    with (
        running_gateway(tmp_path, IMAGES_ONLY) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        assert refused(client, body_of()) == (None, "unsupported_model")
