"""Text completions and models over the real server, through OpenAI's own client."""

import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Completion
from support.api.openai_spec import assert_valid
from support.servers.server import TinyServer

pytestmark = pytest.mark.engine


@pytest.fixture
def greedy(server: TinyServer) -> dict[str, Any]:
    return {"model": server.model, "prompt": "Hello", "temperature": 0, "max_tokens": 6}


def complete(client: OpenAI, **asked: Any) -> Completion:
    """One whole completion, checked."""
    raw = client.completions.with_raw_response.create(**asked)
    assert_valid(json.loads(raw.text), "CreateCompletionResponse", "chat")
    parsed: Completion = raw.parse()
    assert parsed.usage is not None
    usage = parsed.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return parsed


def events_of(client: OpenAI, **asked: Any) -> list[dict[str, Any]]:
    """The events of a completion. OpenAI's own have null where its types want an end's reason."""
    lenient = client.with_options(_extra_kwargs={"_strict_response_validation": False})
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    with lenient.completions.create(**asked) as stream:
        events = [chunk.model_dump(mode="json", exclude_unset=True) for chunk in stream]
    *pieces, last = events
    assert all(event["usage"] is None for event in pieces)
    assert last["choices"] == []
    for event in events:
        checked = {name: value for name, value in event.items() if value is not None}
        choices = [
            {**one, "finish_reason": one["finish_reason"] or "stop"} for one in event["choices"]
        ]
        assert_valid({**checked, "choices": choices}, "CreateCompletionResponse", "chat")
    return events


def joined(events: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def test_a_prompt_is_completed(client: OpenAI, greedy: dict[str, Any]) -> None:
    completion = complete(client, **greedy)
    (choice,) = completion.choices
    assert choice.finish_reason == "length"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (5, 6)
    events = events_of(client, **greedy)
    assert joined(events) == {0: choice.text}
    reasons = [one["finish_reason"] for event in events for one in event["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert events[-1]["usage"]["completion_tokens"] == 6


def test_text_and_its_tokens_are_the_same_prompt(client: OpenAI, greedy: dict[str, Any]) -> None:
    text = complete(client, **greedy).choices[0].text
    ids = complete(client, **{**greedy, "prompt": list(b"Hello")})
    assert ids.choices[0].text == text


def test_several_prompts_and_choices(client: OpenAI, greedy: dict[str, Any]) -> None:
    alone = [complete(client, **{**greedy, "prompt": one}).choices[0].text for one in ("Hi", "Bye")]
    both = {**greedy, "prompt": ["Hi", "Bye"]}
    assert [choice.text for choice in complete(client, **both).choices] == alone
    assert joined(events_of(client, **both)) == dict(enumerate(alone))
    several = {"temperature": 1, "seed": 3, "n": 2, "best_of": 2}
    sampled = complete(client, **{**both, **several}, extra_body={"ignore_eos": True})
    assert [choice.index for choice in sampled.choices] == [0, 1, 2, 3]
    assert sampled.usage is not None
    assert sampled.usage.prompt_tokens == len("Hi") + len("Bye")
    assert sampled.usage.completion_tokens == 4 * 6


def test_log_probabilities(client: OpenAI, greedy: dict[str, Any]) -> None:
    whole = complete(client, **greedy, logprobs=2).choices[0]
    logprobs = whole.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == whole.text
    assert logprobs.text_offset == list(range(6))
    for token, logprob, top in zip(
        logprobs.tokens or (),
        logprobs.token_logprobs or (),
        logprobs.top_logprobs or (),
        strict=True,
    ):
        assert len(top) == 2
        assert top[token] == logprob == max(top.values())
    streamed = [
        one["logprobs"] for e in events_of(client, **greedy, logprobs=2) for one in e["choices"]
    ]
    assert [token for piece in streamed for token in piece["tokens"]] == logprobs.tokens
    assert [one for piece in streamed for one in piece["text_offset"]] == logprobs.text_offset


def test_a_prompt_comes_back(client: OpenAI, greedy: dict[str, Any]) -> None:
    text = complete(client, **greedy).choices[0].text
    echoed = complete(client, **greedy, echo=True).choices[0]
    assert echoed.text == f"Hello{text}"
    assert joined(events_of(client, **greedy, echo=True)) == {0: echoed.text}


def test_a_prompt_is_only_scored(client: OpenAI, greedy: dict[str, Any]) -> None:
    """As harnesses ask; OpenAI's types want a number for the first token, which has none."""
    lenient = client.with_options(_extra_kwargs={"_strict_response_validation": False})
    completion = lenient.completions.create(**{**greedy, "max_tokens": 0}, echo=True, logprobs=1)
    (choice,) = completion.choices
    assert choice.text == "Hello"
    assert choice.logprobs is not None
    scores: list[Any] = choice.logprobs.token_logprobs or []
    assert scores[0] is None
    assert all(score < 0 for score in scores[1:])
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 0


def test_a_choice_of_words(client: OpenAI, greedy: dict[str, Any]) -> None:
    choice = {"structured_outputs": {"choice": ["yes", "no"]}}
    assert complete(client, **greedy, extra_body=choice).choices[0].text in ("yes", "no")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "long " * 3000}, "prompt"),
        ({"prompt": [5, 99_999]}, "prompt"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"extra_body": {"stop_token_ids": [99_999]}}, "stop_token_ids"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(
    fields: dict[str, Any], param: str, client: OpenAI, greedy: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        client.completions.create(**{**greedy, **fields})
    assert refusal.value.param == param
    assert_valid(refusal.value.response.json(), "ErrorResponse", "chat")


def test_models(client: OpenAI, server: TinyServer) -> None:
    raw = client.models.with_raw_response.list()
    assert_valid(json.loads(raw.text), "ListModelsResponse", "chat")
    (model,) = raw.parse().data
    assert model.id == server.model
    one = client.models.with_raw_response.retrieve(server.model)
    assert_valid(json.loads(one.text), "Model", "chat")
    assert one.parse() == model
    with pytest.raises(NotFoundError) as refusal:
        client.models.retrieve("gpt-9")
    assert refusal.value.code == "model_not_found"
    assert_valid(refusal.value.response.json(), "ErrorResponse", "chat")
