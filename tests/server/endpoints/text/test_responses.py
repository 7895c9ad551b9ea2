"""Responses: the events in OpenAI's order, failures, and conversations that are too long."""

import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.api.response_events import COMMON, checked_events
from support.fakes.stages import WORDS, text_of
from support.gateway.responses import TEXT, URL, Event, body_of, refused, whole
from support.gateway.serving import MODEL, RunningGateway

from omnistage.server.endpoints.text import responses
from omnistage.server.http.request import MAX_LOOP_BYTES
from omnistage.server.responses.shorten import turns_to_drop

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


def events_of(client: httpx.Client, script: str = "words", **more: Any) -> list[Event]:
    """The events of one streamed response, each checked, and what SSE calls it."""
    answer = client.post(URL, json=body_of(script, stream=True, **more))
    return checked_events(answer, COMPONENTS)


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def without_ids(response: Event) -> Event:
    """A response without what differs each time."""
    changing = ("id", "created_at", "completed_at")
    output = [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]
    return {**{k: v for k, v in response.items() if k not in changing}, "output": output}


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


def test_a_long_conversation_is_shortened_beside_the_event_loop(
    gateway: RunningGateway, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(messages: Sequence[Any]) -> range:
        threads.append(threading.get_ident())
        return turns_to_drop(messages)

    monkeypatch.setattr(responses, "turns_to_drop", noted)
    said = turns("refuse")
    said[0]["content"] = "x" * MAX_LOOP_BYTES
    assert refused(client, script=said, truncation="auto")[1] == "context_length_exceeded"
    assert len(threads) == 3
    assert gateway.do(threading.get_ident) not in threads


def test_a_conversation_that_fits_the_second_time_is_answered_as_a_whole(
    gateway: RunningGateway, client: httpx.Client, openai: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_refused(body: Any) -> str:
        return "refuse" if len(body.fields["messages"]) > 4 else text_of(body)

    monkeypatch.setattr("support.fakes.stages.text_of", is_refused)
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
