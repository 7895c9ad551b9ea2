"""Responses: what a stage gets, what is kept, and what is refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response
from support.api.openai_spec import assert_valid
from support.gateway.responses import TEXT, URL, body_of, refused, whole
from support.gateway.serving import EMBEDDING, MODEL, TEXT_ONLY, RunningGateway, running_gateway

from omnistage.server.endpoints.text import kept_responses
from omnistage.server.http.access.keys import Keys
from omnistage.server.responses.schema import NOT_DONE, WITHOUT_EFFECT
from omnistage.server.responses.store import ResponseStore

LOOK = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "strict": True,
    "parameters": {"type": "object", "properties": {}},
}
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def stage_body(gateway: RunningGateway) -> dict[str, Any]:
    return gateway.stages.stages["thinker"].last_body


def test_the_stage_gets_the_chat_that_it_is(gateway: RunningGateway, client: httpx.Client) -> None:
    whole(
        client,
        instructions="Be kind.",
        max_output_tokens=20,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        tools=[LOOK],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
    )
    function = {key: value for key, value in LOOK.items() if key != "type"}
    assert stage_body(gateway) == {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "words"}]},
        ],
        "max_completion_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}},
        },
        "reasoning_effort": "low",
        "logprobs": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_picture_reaches_the_stage(gateway: RunningGateway, client: httpx.Client) -> None:
    parts = [
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_text", "text": "words"},
    ]
    response = client.post(URL, json=body_of(input=[{"role": "user", "content": parts}]))
    assert response.status_code == 200, response.text
    (message,) = stage_body(gateway)["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]


def test_a_response_goes_on_with_an_earlier_one(
    gateway: RunningGateway, openai: OpenAI, client: httpx.Client
) -> None:
    first = openai.responses.create(model=MODEL, input="think and call", instructions="Once.")
    call = first.output[-1]
    assert call.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "words"}
    second = openai.responses.create(
        model=MODEL,
        input=[output],
        previous_response_id=first.id,
    )
    assert second.previous_response_id == first.id
    asked, answered, told = stage_body(gateway)["messages"]
    assert asked == {"role": "user", "content": [{"type": "text", "text": "think and call"}]}
    assert answered["reasoning"] == "Hm"
    assert answered["content"] == [{"type": "text", "text": TEXT}]
    assert answered["tool_calls"][0]["function"]["name"] == "look"
    assert told == {"role": "tool", "tool_call_id": call.call_id, "content": "words"}
    items = list(openai.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]
    page = client.get(f"{URL}/{second.id}/input_items").json()
    assert_valid(page, "ResponseItemList", "responses")


def test_a_response_is_told_again_until_it_is_deleted(openai: OpenAI) -> None:
    response = openai.responses.create(model=MODEL, input="words")
    assert openai.responses.retrieve(response.id) == response
    with pytest.raises(BadRequestError) as refusal:
        openai.responses.cancel(response.id)
    assert refusal.value.param == "response_id"
    openai.responses.delete(response.id)
    for ask in (openai.responses.retrieve, openai.responses.delete, openai.responses.cancel):
        with pytest.raises(NotFoundError) as missing:
            ask(response.id)
        assert missing.value.code == "response_not_found"


def test_what_is_not_to_be_stored_is_not(openai: OpenAI) -> None:
    response = openai.responses.create(model=MODEL, input="words", store=False)
    assert response.model_dump()["store"] is False
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(response.id)


def test_a_streamed_response_is_there_when_its_last_event_comes(openai: OpenAI) -> None:
    with openai.responses.create(model=MODEL, input="words", stream=True) as stream:
        for event in stream:
            if event.type == "response.completed":
                kept: Response = openai.responses.retrieve(event.response.id)
                assert kept == event.response


def test_pages_of_items_join_to_all_of_them(client: httpx.Client) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    response_id = whole(client, input=items)["id"]
    url, found = f"{URL}/{response_id}/input_items", []
    page = client.get(url, params={"limit": 2}).json()
    while True:
        assert_valid(page, "ResponseItemList", "responses")
        found += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        page = client.get(url, params={"limit": 2, "after": page["last_id"]}).json()
    assert found == ["4", "3", "2", "1", "0"]
    refusal = client.get(url, params={"after": "x"})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "after")


def test_items_are_read_and_written_beside_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation may have tens of thousands of parts, or megabytes of images."""
    threads: dict[str, int] = {}

    def noting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            threads[name] = threading.get_ident()
            return work(*given)

        return noted

    response_id = whole(client)["id"]
    monkeypatch.setattr(ResponseStore, "get", noting("loop", ResponseStore.get))
    page_of = noting("page", kept_responses.page_of)  # its first argument is read for it
    monkeypatch.setattr(kept_responses, "page_of", page_of)
    page = client.get(f"{URL}/{response_id}/input_items").json()
    assert [one["content"][0]["text"] for one in page["data"]] == ["words"]
    assert threads["page"] != threads["loop"]


def test_nobody_sees_the_responses_of_another_key(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, TEXT_ONLY, keys=Keys(["sk-ann", "sk-bob"])) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        ann, bob = ({"Authorization": f"Bearer {key}"} for key in ("sk-ann", "sk-bob"))
        response = client.post(URL, json=body_of(), headers=ann).json()
        url = f"{URL}/{response['id']}"
        assert client.get(url, headers=bob).status_code == 404
        assert client.delete(url, headers=bob).status_code == 404
        follow = body_of(previous_response_id=response["id"])
        refusal = client.post(URL, json=follow, headers=bob)
        assert refusal.json()["error"]["code"] == "previous_response_not_found"
        assert client.get(url, headers=ann).json() == response


@pytest.mark.parametrize("name", sorted([*NOT_DONE, "n", "response_format", "messages", "echo"]))
def test_a_refused_field_is_refused_by_name(name: str, client: httpx.Client) -> None:
    value: Any = {"n": 2, "response_format": {"type": "json_object"}}.get(name, True)
    assert refused(client, **{name: value}) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [LOOK, {"type": "mcp"}]}, "tools[1].type", "unsupported_parameter"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "zork"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [{**LOOK, "name": ""}]}, "tools[0].name", "invalid_value"),
        (
            {"tools": [LOOK], "tool_choice": {"type": "function", "name": "go"}},
            "tool_choice.name",
            "invalid_value",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"text": {"format": {"type": "poem"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": 3}}},
            "text.format.schema",
            "invalid_value",
        ),
        ({"reasoning": {"effort": "vast"}}, "reasoning.effort", "invalid_value"),
        ({"include": ["zork"]}, "include[0]", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"previous_response_id": "x"}, "previous_response_id", "previous_response_not_found"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 3}, "input", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", None),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", "invalid_value"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name", "invalid_value"),
        (
            {"input": [{"type": "function_call_output", "call_id": "a", "output": 3}]},
            "input[0].output",
            "invalid_value",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].image_url",
            "invalid_value",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "input[0].content[0].file_id",
            "unsupported_parameter",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_done_or_wrong_is_refused_where_the_client_wrote_it(
    fields: dict[str, Any], param: str, code: str | None, client: httpx.Client
) -> None:
    found = refused(client, **fields)
    assert found == (param, code or "unsupported_parameter")


def test_a_picture_that_cannot_be_read_is_refused_in_the_client_s_words(
    client: httpx.Client,
) -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    response = client.post(
        URL, json=body_of(input=[LATER, {"role": "user", "content": [part]}], instructions="x")
    )
    error = response.json()["error"]
    assert error["param"] == "input[1].content[0].image_url"
    assert error["message"].startswith("input[1].content[0].image_url cannot be read")


LATER = {"role": "user", "content": "words"}


def test_ignored_and_unknown_fields(client: httpx.Client) -> None:
    ignored = dict.fromkeys(WITHOUT_EFFECT, "x")
    asked = body_of(**ignored, zork=3, background=False, text={"verbosity": "low", "zork": 1})
    response = client.post(URL, json=asked)
    assert response.status_code == 200
    warned = response.headers["x-omnistage-warning"]
    assert warned == "unknown fields without effect: zork, text.zork"


def test_a_model_of_vectors_makes_no_response(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, EMBEDDING) as running,
        httpx.Client(base_url=running.url, timeout=600) as client,
    ):
        assert refused(client) == (None, "unsupported_model")
