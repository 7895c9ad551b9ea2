"""Answers as OpenAI's own client reads them, whole and streamed."""

from typing import Any

import httpx
import pytest
from openai import APIError, BadRequestError, InternalServerError, OpenAI
from support.fakes.stages import WORDS
from support.gateway.serving import MODEL, RunningGateway
from support.gateway.spoken_chats import NUM_FRAMES, TEXT, asked, events_of, spoken

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_whole_text_answer(openai: OpenAI) -> None:
    completion = openai.chat.completions.create(**asked("words"))
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == MODEL
    (choice,) = completion.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content == TEXT
    assert choice.message.refusal is None
    assert choice.message.annotations == []
    assert choice.message.audio is None
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 5
    assert completion.usage.total_tokens == 8
    assert "prompt_token_ids" not in completion.model_dump()
    assert "token_ids" not in choice.model_dump()


def test_streamed_text_says_its_role_once_and_no_usage_unasked(client: httpx.Client) -> None:
    events = events_of(client, asked("words"))
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert "".join(delta.get("content", "") for delta in deltas) == TEXT
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert not any("token_ids" in event["choices"][0] for event in events)


def test_usage_comes_last_when_asked_for(client: httpx.Client) -> None:
    events = events_of(client, asked("words", stream_options={"include_usage": True}))
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(("script", "stop"), [("stop string", "END"), ("stop token", 7)])
@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"], ["audio"]])
def test_every_choice_says_what_it_stopped_at(
    script: str, stop: str | int, modalities: list[str], client: httpx.Client
) -> None:
    body = spoken(script) | {"modalities": modalities}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    choices = [event["choices"][0] for event in events_of(client, body)]
    assert choices[-1]["stop_reason"] == stop
    assert not any("stop_reason" in choice for choice in choices[:-1])
    for plain in ("words", "cut", "tool"):
        body = spoken(plain) | {"modalities": modalities}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["stop_reason"] is None
        *_, last = events_of(client, body)
        assert last["choices"][0]["stop_reason"] is None


@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"], ["audio"]])
def test_the_usage_so_far_is_in_every_chunk_for_who_asks(
    modalities: list[str], client: httpx.Client
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = spoken("words", stream_options=options) | {"modalities": modalities}
    *events, last = events_of(client, body)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(WORDS))
    assert {event["usage"]["prompt_tokens"] for event in events} == {5}
    num_frames = NUM_FRAMES if "audio" in modalities else 0
    assert last["usage"]["completion_tokens"] == 3 + num_frames
    without = {**body, "stream_options": {"continuous_usage_stats": True}}
    assert not any("usage" in event for event in events_of(client, without))


def test_several_choices(openai: OpenAI, client: httpx.Client) -> None:
    completion = openai.chat.completions.create(**asked("words", n=3))
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert {choice.message.content for choice in completion.choices} == {TEXT}
    events = events_of(client, asked("words", n=2))
    roles = [event["choices"][0] for event in events if "role" in event["choices"][0]["delta"]]
    assert sorted(choice["index"] for choice in roles) == [0, 1]


def test_tool_calls_are_merged(openai: OpenAI) -> None:
    completion = openai.chat.completions.create(**asked("tool"))
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.id == "call_1"
    assert call.type == "function"
    assert call.function.name == "look"
    assert call.function.arguments == '{"at":1}'


def test_log_probabilities_are_merged(openai: OpenAI) -> None:
    completion = openai.chat.completions.create(**asked("logprobs", logprobs=True))
    (choice,) = completion.choices
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert [entry.token for entry in choice.logprobs.content or ()] == WORDS


def test_token_ids_for_who_asks(client: httpx.Client) -> None:
    body = asked("words", return_token_ids=True)
    completion = client.post("/v1/chat/completions", json=body).json()
    assert completion["prompt_token_ids"] == [1, 2]
    assert completion["choices"][0]["token_ids"] == [7] * (len(WORDS) + 2)


def test_the_stream_helper(openai: OpenAI) -> None:
    with openai.chat.completions.stream(**asked("words")) as stream:
        for _ in stream:
            continue
        message = stream.get_final_completion().choices[0].message
    assert message.role == "assistant"
    assert message.content == TEXT


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [CALL], "content": []},
        {"role": "assistant", "content": []},
        {"role": "tool", "tool_call_id": "call_1", "content": []},
    ],
)
def test_no_parts_are_an_empty_text_where_there_need_be_none(
    message: dict[str, Any], client: httpx.Client, gateway: RunningGateway
) -> None:
    body = asked("words")
    body["messages"] = [*body["messages"], message]
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    seen = gateway.stages.stages["thinker"].last_body["messages"][-1]
    assert seen == {**message, "content": ""}


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_no_parts_of_others_are_refused(role: str, client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": [{"role": role, "content": []}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content"


def test_a_timeline_comes_before_the_last_events_and_in_a_whole_answer(
    client: httpx.Client,
) -> None:
    body = spoken("words", return_timeline=True)
    events = events_of(client, body)
    (told,) = [event for event in events if "timeline" in event]
    assert told["choices"] == []
    whole = client.post("/v1/chat/completions", json=body).json()
    for timeline in (told["timeline"], whole["timeline"]):
        names = [(mark["stage"], mark["event"]) for mark in timeline]
        ways = [("gateway", event) for event in ("received", "admitted", "sent")]
        assert names[:3] == ways
        assert {f"{stage} {event}" for stage, event in names[3:]} == {
            "thinker received",
            "thinker first_output",
            "code2wav received",
            "code2wav first_output",
            "gateway first_text",
            "gateway first_audio",
        }
        assert timeline[0]["ms"] == 0.0


def test_every_part_of_text_is_text_to_the_stage(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    parts = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "output_text", "text": "So."},
        {"type": "refusal", "refusal": "No."},
    ]
    messages = [
        {"role": "assistant", "content": parts},
        {"role": "assistant", "content": None, "refusal": "Never."},
        {"role": "user", "content": [{"type": "input_text", "text": "words"}]},
    ]
    body = {"model": MODEL, "messages": messages}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    seen = gateway.stages.stages["thinker"].last_body["messages"]
    assert [part["text"] for part in seen[0]["content"]] == ["Hm.", "So.", "No."]
    assert seen[1]["content"] == "Never."


def test_only_allowed_tools_reach_the_stage(gateway: RunningGateway, client: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "go")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools[1:]}}
    body = asked("words", tools=tools, tool_choice=choice)
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    seen = gateway.stages.stages["thinker"].last_body
    assert (seen["tools"], seen["tool_choice"]) == (tools[1:], "required")


def test_a_delta_that_says_nothing_is_not_sent(client: httpx.Client) -> None:
    events = events_of(client, asked("held"))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "all"}, {"content": ""}]
    with_ids = events_of(client, asked("held", return_token_ids=True))
    assert len(with_ids) == len(events) + 2


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_stage_refuses_is_a_real_status(stream: bool, openai: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refusal:
        openai.chat.completions.create(**asked("refuse", stream=stream))
    assert refusal.value.code == "context_length_exceeded"
    assert refusal.value.param == "messages"
    assert refusal.value.type == "invalid_request_error"


def test_a_failure_of_a_whole_answer(openai: OpenAI) -> None:
    with pytest.raises(InternalServerError) as failure:
        openai.chat.completions.create(**asked("fail later"))
    assert failure.value.type == "server_error"
    assert "Stage thinker failed: broken" in failure.value.message


def test_a_failure_within_a_stream_is_an_event(openai: OpenAI, client: httpx.Client) -> None:
    with (
        openai.chat.completions.create(**asked("fail later", stream=True)) as stream,
        pytest.raises(APIError, match="broken"),
    ):
        list(stream)
    events = events_of(client, asked("fail later"))
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert "thinker" in events[-1]["error"]["message"]


def test_the_entry_stage_gets_vllm_s_fields_and_its_own_parameters(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    body = spoken(
        "words",
        seed=11,
        temperature=0.5,
        top_k=3,
        max_tokens=9,
        stop=["x"],
        stage_params={"thinker": {"temperature": 0, "max_tokens": 4}, "talker": {"seed": 3}},
        metadata={"a": "b"},
    )
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    request = gateway.stages.stages["thinker"].last_request
    assert request.outputs == ["text", "audio"]
    assert request.speaker == "ethan"
    assert request.seed == 11
    assert request.return_codes is False
    assert request.stage_params["talker"] == {"seed": 3}
    assert request.fields == {
        "messages": [{"role": "user", "content": "words"}],
        "seed": 11,
        "temperature": 0,
        "top_k": 3,
        "max_completion_tokens": 4,
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_text_asks_nothing_of_the_other_stages(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    before = len(gateway.stages.stages["talker"].seen)
    assert client.post("/v1/chat/completions", json=asked("words")).status_code == 200
    assert len(gateway.stages.stages["talker"].seen) == before
    assert gateway.stages.stages["thinker"].last_request.outputs == ["text"]
