"""Responses: the events in OpenAI's order, what is kept, what is refused, and what a stage gets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response
from support.fake_stages import WORDS, text_of
from support.gateway import EMBEDDING, MODEL, TEXT_ONLY, RunningGateway, running_gateway
from support.openai_spec import assert_valid
from support.response_events import COMMON, checked_events

from omnistage.server.http.access.keys import Keys
from omnistage.server.responses.schema import NOT_DONE, WITHOUT_EFFECT

URL = "/v1/responses"
TEXT = "".join(WORDS)
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
Event = dict[str, Any]
COMPONENTS = {
    **COMMON,
    "response.reasoning_text.delta": "ResponseReasoningTextDeltaEvent",
    "response.reasoning_text.done": "ResponseReasoningTextDoneEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneEvent",
    "response.incomplete": "ResponseIncompleteEvent",
}
BEGIN = ["created", "in_progress"]
MESSAGE = ["output_item.added", "content_part.added"]
END_OF_MESSAGE = ["output_text.done", "content_part.done", "output_item.done"]
DELTA = "output_text.delta"


def body_of(script: str = "words", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": script, **more}


def whole(client: httpx.Client, script: str = "words", **more: Any) -> Event:
    answer = client.post(URL, json=body_of(script, **more))
    assert answer.status_code == 200, answer.text
    assert_valid(answer.json(), "Response", "responses")
    response: Event = answer.json()
    return response


def events_of(client: httpx.Client, script: str = "words", **more: Any) -> list[Event]:
    """The events of one streamed response, each checked, and what SSE calls it."""
    answer = client.post(URL, json=body_of(script, stream=True, **more))
    return checked_events(answer, COMPONENTS)


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def refused(client: httpx.Client, **fields: Any) -> tuple[str | None, str | None]:
    response = client.post(URL, json=body_of(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert_valid(response.json(), "ErrorResponse", "responses")
    assert error["param"] is None or error["param"] in error["message"] or error["code"]
    return error["param"], error["code"]


def without_ids(response: Event) -> Event:
    """A response without what differs each time."""
    changing = ("id", "created_at", "completed_at")
    output = [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]
    return {**{k: v for k, v in response.items() if k not in changing}, "output": output}


# Answers


def test_the_sdk_reads_a_whole_response(openai: OpenAI) -> None:
    response = openai.responses.create(model=MODEL, input="words", metadata={"a": "b"})
    assert response.output_text == TEXT
    assert response.status == "completed"
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5, 3)
    assert response.id.startswith("resp_")


def test_the_events_of_a_text_come_in_openai_s_order(client: httpx.Client) -> None:
    events = events_of(client)
    deltas = [DELTA] * len(WORDS)
    assert kinds(events) == [*BEGIN, *MESSAGE, *deltas, *END_OF_MESSAGE, "completed"]
    assert [event["delta"] for event in events if "delta" in event] == WORDS
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    (item,) = events[-1]["response"]["output"]
    assert {event.get("item_id", item["id"]) for event in events} == {item["id"]}
    assert item["content"][0]["text"] == TEXT


@pytest.mark.parametrize(
    "script", ["words", "tool", "two tools", "think", "think and call", "cut", "silent"]
)
def test_whole_and_streamed_responses_are_one(script: str, client: httpx.Client) -> None:
    response, events = whole(client, script), events_of(client, script)
    streamed = events[-1]["response"]
    for item in (*response["output"], *streamed["output"]):
        item.pop("call_id", None)
    assert without_ids(streamed) == without_ids(response)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in done] == [item["id"] for item in streamed["output"]]


@pytest.mark.parametrize("script", ["words", "tool", "two tools", "think and call"])
def test_the_sdk_s_helper_puts_the_same_together(script: str, openai: OpenAI) -> None:
    with openai.responses.stream(model=MODEL, input=script) as stream:
        for _ in stream:
            continue
        helped = stream.get_final_response()
    response = openai.responses.create(model=MODEL, input=script)
    assert [item.type for item in helped.output] == [item.type for item in response.output]
    assert helped.output_text == response.output_text


def test_thoughts_and_calls_are_items_of_their_own(client: httpx.Client) -> None:
    events = events_of(client, "think and call")
    thought, message, call = events[-1]["response"]["output"]
    assert [item["type"] for item in (thought, message, call)] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm"}]
    assert message["content"][0]["text"] == TEXT
    assert (call["name"], call["arguments"]) == ("look", '{"at":1}')
    assert kinds(events) == [
        *BEGIN,
        *MESSAGE,
        *["reasoning_text.delta"] * 2,
        *["reasoning_text.done", "content_part.done", "output_item.done"],
        *MESSAGE,
        *[DELTA] * 3,
        *END_OF_MESSAGE,
        "output_item.added",
        *["function_call_arguments.delta"] * 2,
        *["function_call_arguments.done", "output_item.done"],
        "completed",
    ]
    indexes = [event["output_index"] for event in events if "output_index" in event]
    assert indexes == sorted(indexes)
    assert set(indexes) == {0, 1, 2}


def test_two_calls_are_two_items_one_after_the_other(client: httpx.Client) -> None:
    response = events_of(client, "two tools")[-1]["response"]
    _, *calls = response["output"]
    assert [call["name"] for call in calls] == ["look", "go"]
    assert [call["call_id"] for call in calls] == ["call_0", "call_1"]
    assert {call["status"] for call in calls} == {"completed"}


def test_a_response_that_was_cut_says_so(client: httpx.Client) -> None:
    response = events_of(client, "cut")[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["incomplete"]


def test_a_model_that_says_nothing_has_an_empty_message(client: httpx.Client) -> None:
    (item,) = whole(client, "silent")["output"]
    assert item["content"][0]["text"] == ""
    assert item["status"] == "completed"


def test_log_probabilities_come_where_they_are_asked_for(client: httpx.Client) -> None:
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = events_of(client, "logprobs", **asked)
    told = [one["token"] for event in events if "delta" in event for one in event["logprobs"]]
    whole_ones = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert told == [one["token"] for one in whole_ones] == WORDS


def test_a_refusal_of_a_stage_has_its_status_streamed_or_not(client: httpx.Client) -> None:
    for stream in (False, True):
        assert refused(client, script="refuse", stream=stream) == (
            "input",
            "context_length_exceeded",
        )


def turns(script: str) -> list[Any]:
    """Two turns before one with this text."""
    said: list[Any] = [{"role": "user", "content": "words"}, {"role": "assistant", "content": "A."}]
    return [
        {"role": "developer", "content": "Be kind."},
        *said,
        *said,
        {"role": "user", "content": script},
    ]


@pytest.mark.parametrize(
    ("truncation", "lengths"), [("auto", [6, 4, 2]), ("disabled", [6]), (None, [6])]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_is_too_long_is_sent_without_its_oldest_turns(
    gateway: RunningGateway,
    client: httpx.Client,
    truncation: str | None,
    lengths: list[int],
    stream: bool,
) -> None:
    """The fake thinker refuses the last text, however long the chat is."""
    opened = gateway.stages.stages["thinker"].opened
    before = gateway.do(lambda: len(opened))
    given = {"script": turns("refuse"), "truncation": truncation, "stream": stream}
    assert refused(client, **given) == ("input", "context_length_exceeded")
    sent = gateway.do(lambda: [one.message.fields["messages"] for one in opened[before:]])
    assert [len(messages) for messages in sent] == lengths
    assert {messages[0]["content"] for messages in sent} == {"Be kind."}
    assert {messages[-1]["role"] for messages in sent} == {"user"}
    gateway.wait_until_idle()


def test_a_conversation_that_fits_the_second_time_is_answered_as_a_whole(
    gateway: RunningGateway, client: httpx.Client, openai: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_refused(body: Any) -> str:
        return "refuse" if len(body.fields["messages"]) > 4 else text_of(body)

    monkeypatch.setattr("support.fake_stages.text_of", is_refused)
    response = openai.responses.create(model=MODEL, input=turns("words"), truncation="auto")
    assert (response.output_text, response.truncation) == (TEXT, "auto")
    events = events_of(client, turns("words"), truncation="auto")  # type: ignore[arg-type]
    assert kinds(events) == kinds(events_of(client))
    again = whole(client, previous_response_id=response.id, truncation="auto")
    assert again["status"] == "completed"
    items = client.get(f"{URL}/{response.id}/input_items").json()["data"]
    assert len(items) == 6  # what was left out is kept
    gateway.wait_until_idle()


def test_a_failure_after_the_first_event_is_the_last_one(client: httpx.Client) -> None:
    events = events_of(client, "fail later")
    assert kinds(events) == [*BEGIN, *MESSAGE, DELTA, "failed"]
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert "broken" in response["error"]["message"]
    assert [item["status"] for item in response["output"]] == ["incomplete"]


def test_a_client_that_hangs_up_ends_its_request(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    with client.stream("POST", URL, json=body_of("endless", stream=True)) as response:
        next(response.iter_bytes())
    gateway.wait_until_idle()


# What the stage gets


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


# What is kept


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


# What is refused


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
