"""Text completions: what is refused, and what the entry stage gets."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.fakes.stages import WORDS
from support.gateway.serving import MODEL, RunningGateway, running_gateway

from omnistage.server.tasks.chat.completion_fields import COMPLETION_DONE, CompletionRequest
from omnistage.server.tasks.chat.fields import IGNORED

URL = "/v1/completions"
TURN = [{"role": "user", "content": "words"}]
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


def events_of(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", URL, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


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


@pytest.mark.parametrize(
    ("script", "stop"), [("stop string", "END"), ("stop token", 7), ("words", None)]
)
def test_every_choice_says_what_it_stopped_at(
    script: str, stop: str | int | None, client: httpx.Client
) -> None:
    (choice,) = client.post(URL, json=body_of(prompt=script)).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    choices = [event["choices"][0] for event in events_of(client, body_of(prompt=script))]
    assert [choice["stop_reason"] for choice in choices] == [None] * (len(choices) - 1) + [stop]


def test_the_usage_so_far_is_in_every_chunk_for_who_asks(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = events_of(client, body_of(stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [0, *range(1, len(WORDS) + 1), len(WORDS)]
    assert last["usage"]["total_tokens"] == 8


@pytest.mark.parametrize(
    ("url", "said"), [(URL, {"prompt": "words"}), ("/v1/chat/completions", {"messages": TURN})]
)
@pytest.mark.parametrize("more", [{"temperature": 0}, {"min_tokens": 9, "max_tokens": 1}])
def test_what_is_refused_is_named_before_what_does_not_go_together(
    url: str, said: dict[str, Any], more: dict[str, Any], client: httpx.Client
) -> None:
    body = {"model": MODEL, "use_beam_search": True, "n": 2, **said, **more}
    error = client.post(url, json=body).json()["error"]
    assert (error["param"], error["code"]) == ("use_beam_search", "unsupported_parameter")


def test_the_stage_gets_the_prompt_and_openai_s_number_of_tokens(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    body = body_of(prompt=[[1, 2], [3]], n=2, best_of=2, top_k=3, stop="x", user="me")
    assert client.post(URL, json=body).status_code == 200
    request = gateway.stages.stages["thinker"].last_request
    assert request.outputs == ["text"]
    assert request.fields == {
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
