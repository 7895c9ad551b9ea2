"""Answers as OpenAI's own client reads them, whole and streamed."""

import base64
import io
import json
import wave
from typing import Any

import httpx
import numpy as np
import pytest
from openai import APIError, BadRequestError, InternalServerError, OpenAI
from support.audio import SHORTEST, num_samples_of, samples_of
from support.fake_stages import FRAMES, SAMPLES_PER_FRAME, WORDS
from support.gateway import MODEL, RunningGateway

from omnistage.server.tasks.chat_task import CHAT_FORMATS

TEXT = "".join(WORDS)
NUM_FRAMES = sum(FRAMES)
PCM = np.arange(NUM_FRAMES * SAMPLES_PER_FRAME, dtype="<i2").tobytes()
CODES = [[frame, 9] for frame in range(NUM_FRAMES)]

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def asked(script: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": script}], **more}


def spoken(script: str, form: str = "pcm16", **more: Any) -> dict[str, Any]:
    audio = {"voice": "ethan", "format": form}
    return asked(script, modalities=["text", "audio"], audio=audio, **more)


def events_of(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-request-id"].startswith("req_")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# Text


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


# Speech


@pytest.mark.parametrize("form", ["pcm16", "wav"])
def test_a_whole_spoken_answer(form: str, openai: OpenAI) -> None:
    body = spoken("words", form, extra_body={"return_codes": True})
    completion = openai.chat.completions.create(**body)
    message = completion.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert message.audio.id.startswith("audio_")
    assert message.audio.expires_at > completion.created
    assert message.audio.transcript == TEXT
    assert message.audio.model_dump()["codes"] == CODES
    data = base64.b64decode(message.audio.data, validate=True)
    if form == "wav":
        with wave.open(io.BytesIO(data)) as sound:
            assert (sound.getframerate(), sound.getnchannels()) == (24_000, 1)
            data = sound.readframes(sound.getnframes())
    assert data == PCM
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.audio_tokens == NUM_FRAMES
    assert completion.usage.completion_tokens == 3 + NUM_FRAMES


def test_speech_alone_is_spoken_without_its_words(openai: OpenAI, client: httpx.Client) -> None:
    body = spoken("words", stream_options={"include_usage": True}) | {"modalities": ["audio"]}
    events = events_of(client, body)
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    completion = openai.chat.completions.create(**whole)
    message = completion.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert (message.audio.transcript, base64.b64decode(message.audio.data)) == ("", PCM)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3 + NUM_FRAMES
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    sounds = [delta["audio"] for delta in deltas if "audio" in delta]
    assert b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds) == PCM
    assert not any("transcript" in sound for sound in sounds)
    assert not any(delta.get("content") for delta in deltas)
    assert ["id" in sound for sound in sounds] == [True] + [False] * (len(sounds) - 1)
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    both = events_of(client, spoken("words", stream_options={"include_usage": True}))
    assert events[-1]["usage"] == both[-1]["usage"]


def test_calls_of_tools_are_sent_beside_speech_alone(client: httpx.Client) -> None:
    body = spoken("tool") | {"modalities": ["audio"]}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_1"]


def test_what_was_spoken_without_its_words_is_remembered_by_its_id(
    openai: OpenAI, gateway: RunningGateway
) -> None:
    body = spoken("words") | {"modalities": ["audio"]}
    audio = openai.chat.completions.create(**body).choices[0].message.audio
    assert audio is not None
    turn: Any = {"role": "assistant", "audio": {"id": audio.id}}
    openai.chat.completions.create(model=MODEL, messages=[turn, *asked("words")["messages"]])
    said = gateway.stages.stages["thinker"].last_body["messages"][0]
    assert said == {"role": "assistant", "content": TEXT}


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


def test_streamed_speech_keeps_openai_s_order(client: httpx.Client) -> None:
    body = spoken("words", stream_options={"include_usage": True}, return_codes=True)
    events = events_of(client, body)
    choices = [event["choices"][0] for event in events[:-1]]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens_details"]["audio_tokens"] == NUM_FRAMES
    assert choices[0]["delta"] == {"role": "assistant", "refusal": None}
    assert sum("role" in choice["delta"] for choice in choices) == 1
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    sounds = [choice["delta"]["audio"] for choice in choices[1:-1]]
    assert not any(choice["delta"].get("content") for choice in choices)
    assert ["id" in sound for sound in sounds] == [True] + [False] * (len(sounds) - 1)
    assert ["expires_at" in sound for sound in sounds] == [False] * (len(sounds) - 1) + [True]
    assert "".join(sound.get("transcript", "") for sound in sounds) == TEXT
    data = [base64.b64decode(sound["data"], validate=True) for sound in sounds if "data" in sound]
    assert all(len(piece) % 2 == 0 for piece in data)
    assert b"".join(data) == PCM
    assert [frame for sound in sounds for frame in sound.get("codes", ())] == CODES


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_speech_in_every_format_is_one_file(
    form: str, is_streamed: bool, client: httpx.Client
) -> None:
    body = spoken("words", form)
    if is_streamed:
        events = events_of(client, body)
        sounds = [event["choices"][0]["delta"].get("audio", {}) for event in events]
    else:
        message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        sounds = [message["audio"]]
    assert "".join(sound.get("transcript", "") for sound in sounds) == TEXT
    data = b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds)
    read = samples_of(data)
    assert len(read) >= len(PCM) // 2
    if form == "flac":
        assert read.tobytes() == PCM


def test_streamed_wav_has_one_header(client: httpx.Client) -> None:
    events = events_of(client, spoken("words", "wav"))
    sounds = [event["choices"][0]["delta"].get("audio", {}) for event in events]
    data = b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds)
    assert data[:4] == b"RIFF"
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    assert data[44:] == PCM


def test_the_stream_helper_reads_speech(openai: OpenAI) -> None:
    with openai.chat.completions.stream(**spoken("words")) as stream:
        for _ in stream:
            continue
        message = stream.get_final_completion().choices[0].message
    assert message.role == "assistant"
    assert message.audio is not None
    assert message.audio.id.count("audio_") == 1
    assert message.audio.transcript == TEXT


@pytest.mark.parametrize("script", ["silent", "tool"])
@pytest.mark.parametrize("form", CHAT_FORMATS)
def test_an_answer_without_words_is_a_file_without_samples(
    form: str, script: str, openai: OpenAI, client: httpx.Client
) -> None:
    message = openai.chat.completions.create(**spoken(script, form)).choices[0].message
    assert message.audio is not None
    data = base64.b64decode(message.audio.data)
    assert bool(data) == (form != "pcm16")
    assert num_samples_of(form, data) <= SHORTEST[form]
    assert message.audio.transcript == ""
    assert bool(message.tool_calls) == (script == "tool")
    events = events_of(client, spoken(script, form))
    sounds = [event["choices"][0]["delta"].get("audio", {}) for event in events]
    streamed = b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds)
    assert bool(streamed) == (form != "pcm16")
    assert num_samples_of(form, streamed) <= SHORTEST[form]
    assert sum("id" in sound for sound in sounds) == 1
    assert sum("expires_at" in sound for sound in sounds) == 1


def test_a_spoken_answer_can_be_named_later(gateway: RunningGateway, openai: OpenAI) -> None:
    audio = openai.chat.completions.create(**spoken("words")).choices[0].message.audio
    assert audio is not None
    history: list[Any] = [
        {"role": "assistant", "audio": {"id": audio.id}},
        {"role": "user", "content": "on"},
    ]
    openai.chat.completions.create(model=MODEL, messages=history)
    body = gateway.stages.stages["thinker"].last_body
    assert body["messages"][0] == {"role": "assistant", "content": TEXT}
    history[0] = {"role": "assistant", "audio": {"id": "audio_unknown"}}
    with pytest.raises(BadRequestError) as refusal:
        openai.chat.completions.create(model=MODEL, messages=history)
    assert refusal.value.code == "audio_not_found"
    assert refusal.value.param == "messages[0].audio.id"


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


# Failures


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


# What the stages get


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
