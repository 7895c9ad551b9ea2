"""Every feature of chat over the real server, through OpenAI's own client in strict mode."""

import base64
import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from support.api.openai_answers import ask, ask_whole
from support.api.openai_chats import HELLO, NO_SPACE, SPOKEN, Look, usage_of
from support.api.openai_spec import assert_valid
from support.api.prompts import (
    PICTURE,
    SHORT,
    image_part,
    sound_part,
    text,
    video_bytes,
    video_part,
)
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine
SHORT_SPEECH = {"stage_params": {"talker": {"temperature": 0, "max_tokens": 20}}}


@pytest.fixture
def greedy(server: TinyServer) -> dict[str, Any]:
    return {"model": server.model, "messages": HELLO, "temperature": 0, "max_tokens": 16}


def test_text(client: OpenAI, greedy: dict[str, Any]) -> None:
    answers = ask(client, **greedy)
    assert len(set(answers.texts)) == 1
    assert answers.finish_reasons == ["length"] * 3
    usage = usage_of(answers.whole)
    streamed = answers.events[-1]["usage"]
    assert usage["completion_tokens_details"] == streamed["completion_tokens_details"]
    assert usage["completion_tokens"] == 16


def test_a_stop_string(client: OpenAI, greedy: dict[str, Any]) -> None:
    words = ask(client, **greedy).texts[0]
    assert words is not None
    answers = ask(client, **greedy, stop=[words[5:7]])
    assert set(answers.texts) == {words[:5]}
    assert answers.finish_reasons == ["stop"] * 3
    (ended,) = [event["choices"][0] for event in answers.events if "stop_reason" in str(event)]
    whole = answers.whole.choices[0].model_dump()
    assert whole["stop_reason"] == ended["stop_reason"] == words[5:7]


def test_several_choices_have_one_usage(client: OpenAI, greedy: dict[str, Any]) -> None:
    several = {**greedy, "temperature": 1, "seed": 5, "n": 3, "max_tokens": 5}
    answers = ask(client, **several, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answers.whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answers.whole.choices}) == 3
    assert len(answers.helped.choices) == 3
    assert usage_of(answers.whole)["completion_tokens"] == 15
    with pytest.raises(BadRequestError) as refusal:
        client.chat.completions.create(**greedy, n=2)
    assert refusal.value.param == "n"


def test_log_probabilities(client: OpenAI, greedy: dict[str, Any]) -> None:
    answers = ask(client, **greedy, logprobs=True, top_logprobs=2)
    for completion in (answers.whole, answers.helped):
        logprobs = completion.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert "".join(one.token for one in logprobs.content) == answers.texts[0]
        for one in logprobs.content:
            first, second = one.top_logprobs
            assert (first.token, first.logprob) == (one.token, one.logprob)
            assert first.logprob >= second.logprob
            assert bytes(one.bytes or ()).decode() == one.token


def test_a_developer_is_heard_as_a_system(client: OpenAI, greedy: dict[str, Any]) -> None:
    prompts = []
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Be kind."}, *HELLO]
        completion = ask_whole(
            client, **{**greedy, "messages": messages}, extra_body={"return_token_ids": True}
        )
        prompts.append(completion.model_dump()["prompt_token_ids"])
    assert prompts[0] == prompts[1]
    assert len(prompts[0]) > len("Be kind.Hello")


def test_json(client: OpenAI, greedy: dict[str, Any]) -> None:
    brace = {**NO_SPACE, str(ord("}")): 100}
    answers = ask(client, **greedy, response_format={"type": "json_object"}, logit_bias=brace)
    assert set(answers.texts) == {"{}"}
    assert answers.finish_reasons == ["stop"] * 3


def test_a_json_schema(client: OpenAI, greedy: dict[str, Any]) -> None:
    schema = Look.model_json_schema() | {"additionalProperties": False}
    described = {"name": "look", "strict": True, "schema": schema}
    answers = ask(
        client,
        **{**greedy, "max_tokens": 60},
        response_format={"type": "json_schema", "json_schema": described},
        logit_bias=NO_SPACE,
    )
    assert len(set(answers.texts)) == 1
    Look.model_validate_json(answers.texts[0] or "", strict=True)


def test_the_client_parses_a_model(client: OpenAI, greedy: dict[str, Any]) -> None:
    asked = {**greedy, "max_tokens": 60, "logit_bias": NO_SPACE, "response_format": Look}
    parsed = client.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, Look)
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            continue
        assert stream.get_final_completion().choices[0].message.parsed == parsed


def test_a_choice_of_words(client: OpenAI, greedy: dict[str, Any]) -> None:
    choice = {"structured_outputs": {"choice": ["yes", "no"]}}
    answers = ask(client, **greedy, extra_body=choice)
    assert len(set(answers.texts)) == 1
    assert answers.texts[0] in ("yes", "no")


def test_media_are_counted_by_kind(
    client: OpenAI, server: TinyServer, greedy: dict[str, Any]
) -> None:
    parts = [
        image_part(PICTURE),
        sound_part(SHORT),
        video_part(video_bytes(num_frames=4, size=64)),
        text("What?"),
    ]
    messages: list[Any] = [{"role": "user", "content": parts}]
    completion = ask_whole(
        client, **{**greedy, "messages": messages}, extra_body={"return_token_ids": True}
    )
    ids = completion.model_dump()["prompt_token_ids"]
    details = usage_of(completion)["prompt_tokens_details"]
    marked = {name: ids.count(token) for name, token in media_ids(server).items()}
    assert all(marked.values())
    assert details["image_tokens"] == marked["image"] + marked["video"]
    assert details["audio_tokens"] == marked["audio"]
    assert details["text_tokens"] == len(ids) - sum(marked.values())
    streamed = ask(client, **{**greedy, "messages": messages}).events[-1]["usage"]
    streamed["prompt_tokens_details"].pop("cached_tokens")
    details.pop("cached_tokens")
    details = {name: count for name, count in details.items() if count is not None}
    assert streamed["prompt_tokens_details"] == details


def media_ids(server: TinyServer) -> dict[str, int]:
    with open(f"{server.model}/config.json") as file:
        config = json.load(file)["thinker_config"]
    return {kind: config[f"{kind}_token_id"] for kind in ("image", "audio", "video")}


def test_a_prompt_that_is_known_is_counted_as_cached(
    client: OpenAI, greedy: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": "Once upon a time there was a fox. " * 12}]
    first, again = (ask_whole(client, **{**greedy, "messages": messages}) for _ in range(2))
    assert usage_of(first)["prompt_tokens_details"]["cached_tokens"] == 0
    cached = usage_of(again)["prompt_tokens_details"]["cached_tokens"]
    assert 256 <= cached < usage_of(again)["prompt_tokens"]


@pytest.mark.parametrize(
    "part",
    [image_part(PICTURE.resize((256, 256))), video_part(video_bytes(num_frames=2, size=64))],
    ids=lambda part: part["type"],
)
def test_a_client_may_ask_to_see_less(
    part: dict[str, Any], client: OpenAI, greedy: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": [part, text("What?")]}]
    counts = []
    for options in ({}, {"mm_processor_kwargs": {"min_pixels": 1024, "max_pixels": 2048}}):
        body = {**options, **SHORT_SPEECH}
        completion = ask_whole(
            client, **{**greedy, "messages": messages}, **SPOKEN, extra_body=body
        )
        counts.append(usage_of(completion)["prompt_tokens_details"]["image_tokens"])
    assert 0 < counts[1] < counts[0]


def test_more_pixels_than_the_engine_has_room_for_are_refused(
    client: OpenAI, greedy: dict[str, Any]
) -> None:
    part = image_part(PICTURE.resize((960, 960)))
    messages = [{"role": "user", "content": [part, text("What?")]}]
    with pytest.raises(BadRequestError) as refusal:
        client.chat.completions.create(
            **{**greedy, "messages": messages},
            extra_body={"mm_processor_kwargs": {"max_pixels": 12_845_056}},
        )
    assert refusal.value.param == "messages[0].content[0]"


def test_speech(client: OpenAI, greedy: dict[str, Any]) -> None:
    answers = ask(client, **greedy, **SPOKEN, extra_body=SHORT_SPEECH)
    audio = answers.whole.choices[0].message.audio
    helped = answers.helped.choices[0].message.audio
    assert audio is not None
    assert helped is not None
    assert answers.whole.choices[0].message.content is None
    assert audio.transcript == helped.transcript != ""
    sounds = [choice["delta"].get("audio", {}) for e in answers.events for choice in e["choices"]]
    pieces = [base64.b64decode(sound["data"], validate=True) for sound in sounds if "data" in sound]
    assert all(len(piece) % 2 == 0 for piece in pieces)
    assert len(b"".join(pieces)) == len(base64.b64decode(audio.data)) > 0
    usage = usage_of(answers.whole)
    assert (
        usage["completion_tokens_details"]
        == (answers.events[-1]["usage"]["completion_tokens_details"])
    )
    assert 0 < usage["completion_tokens_details"]["audio_tokens"] <= 20
    assert usage["completion_tokens_details"]["text_tokens"] == 16


def test_a_spoken_answer_is_named_in_the_next_turn(client: OpenAI, greedy: dict[str, Any]) -> None:
    audio = ask_whole(client, **greedy, **SPOKEN, extra_body=SHORT_SPEECH).choices[0].message.audio
    assert audio is not None
    follow = {"role": "user", "content": "Go on."}
    prompts = []
    for answer in (
        {"role": "assistant", "audio": {"id": audio.id}},
        {"role": "assistant", "content": "", "audio": {"id": audio.id}},
        {"role": "assistant", "content": audio.transcript},
    ):
        messages = [*HELLO, answer, follow]
        completion = ask_whole(
            client, **{**greedy, "messages": messages}, extra_body={"return_token_ids": True}
        )
        prompts.append(completion.model_dump()["prompt_token_ids"])
    assert prompts[0] == prompts[1] == prompts[2]


def test_a_refusal_is_openai_s(client: OpenAI, greedy: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as refusal:
        client.chat.completions.create(**greedy, functions=[{"name": "f", "parameters": {}}])
    assert_valid(refusal.value.response.json(), "ErrorResponse", "chat")
    assert refusal.value.param == "functions"
