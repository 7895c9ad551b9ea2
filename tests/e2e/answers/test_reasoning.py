"""What a model thinks before it answers, told apart by vLLM's own parser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.api.openai_answers import Answers, ask, strict_client
from support.api.prompts import Question, plain, question, sound, sound_part, text
from support.oracles.reference import ThinkerReference
from support.servers.server import TinyServer, running_server

pytestmark = pytest.mark.engine

END_OF_THOUGHT = 290
HEARD = sound(36800)


@pytest.fixture(scope="module")
def thinking(tiny_thinking: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """The tiny model without a talker, with the graph that is chosen by its folder."""
    log = tmp_path_factory.mktemp("thinking") / "log"
    with running_server(str(tiny_thinking), log) as server:
        body = {"messages": [{"role": "user", "content": [sound_part(HEARD)]}], "max_tokens": 2}
        # What its stage opens for its whole life is open then.
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600).raise_for_status()
        yield server


@pytest.fixture(scope="module")
def oracle(tiny_thinking: Path) -> ThinkerReference:
    return ThinkerReference(str(tiny_thinking))


@pytest.fixture(scope="module")
def client(thinking: TinyServer) -> Iterator[OpenAI]:
    with strict_client(thinking.url) as connected:
        yield connected


def think(client: OpenAI, thinking: TinyServer, **more: Any) -> Answers:
    """A thought and an answer of a few letters: the model may write nothing else."""
    letters = {"allowed_token_ids": [*b"abcd", END_OF_THOUGHT], **more}
    messages: Any = [{"role": "user", "content": "And then?"}]
    return ask(
        client,
        model=thinking.model,
        messages=messages,
        seed=2,
        max_tokens=24,
        extra_body=letters,
    )


def contents(answers: Answers) -> list[str]:
    """What was said in each form, without further ends of a thought.

    vLLM's parser keeps or drops those by which tokens come together.
    """
    return [(said or "").replace("</think>", "") for said in answers.texts]


def test_a_thought_is_told_apart(client: OpenAI, thinking: TinyServer) -> None:
    answers = think(client, thinking)
    message = answers.whole.choices[0].message.model_dump()
    deltas = [choice["delta"] for event in answers.events for choice in event["choices"]]
    assert message["reasoning"] == "".join(delta.get("reasoning") or "" for delta in deltas) != ""
    whole, streamed, _ = contents(answers)
    assert whole == streamed != ""
    assert set(message["reasoning"]) <= set("abcd")
    assert answers.whole.usage is not None
    assert answers.whole.usage.completion_tokens_details is not None
    assert answers.whole.usage.completion_tokens_details.reasoning_tokens == (
        len(message["reasoning"])
    )


def test_a_thought_can_be_left_out(client: OpenAI, thinking: TinyServer) -> None:
    shown = think(client, thinking)
    hidden = think(client, thinking, include_reasoning=False)
    assert contents(hidden) == contents(shown)
    assert all(contents(hidden))
    assert "reasoning" not in hidden.whole.choices[0].message.model_dump()


# Answers with one end of a thought at most: further ones are kept or dropped, see `contents`.
QUESTIONS = [
    plain("thought and answer", ("user", "What is two?")),
    plain("no end of the thought", ("user", "What is one?")),
    question("sound", [sound_part(HEARD), text("What is said?")], audio=[HEARD / 32768]),
    question("sound alone", [sound_part(HEARD)], audio=[HEARD / 32768]),
]


def joined(message: dict[str, Any]) -> str:
    """A thought, and the answer after it, as the model wrote both."""
    thought, said = message.get("reasoning") or "", message.get("content")
    return f"{thought}</think>{said}" if said else thought


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.name)
def test_thoughts_and_answers_equal_the_thinker_of_transformers(
    asked: Question, client: OpenAI, thinking: TinyServer, oracle: ThinkerReference
) -> None:
    expected = oracle.text(asked, max_tokens=40)
    assert expected.count("</think>") <= 1
    answers = ask(
        client,
        model=thinking.model,
        messages=asked.messages,
        temperature=0,
        max_completion_tokens=40,
    )
    message = answers.whole.choices[0].message.model_dump()
    assert joined(message) == expected
    deltas = [choice["delta"] for event in answers.events for choice in event["choices"]]
    thought = "".join(delta.get("reasoning") or "" for delta in deltas)
    said = "".join(delta.get("content") or "" for delta in deltas)
    assert (thought, said) == (message.get("reasoning") or "", message["content"] or "")
    assert ("</think>" in expected) == bool(said)


def test_a_response_has_the_thought_as_an_item(
    client: OpenAI, thinking: TinyServer, oracle: ThinkerReference
) -> None:
    thought, said = oracle.text(QUESTIONS[0], max_tokens=40).split("</think>")
    fields: dict[str, Any] = {"input": "What is two?", "temperature": 0, "max_output_tokens": 40}
    response = client.responses.create(model=thinking.model, **fields)
    first, last = response.output
    assert first.type == "reasoning"
    assert first.content is not None
    assert [part.text for part in first.content] == [thought]
    assert last.type == "message"
    assert response.output_text == said
    with client.responses.stream(model=thinking.model, **fields) as events:
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == thought


def test_speech_of_a_model_without_a_talker_is_refused_by_name(thinking: TinyServer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    chat = {"messages": messages, "modalities": ["text", "audio"], "audio": {"format": "wav"}}
    with httpx.Client(base_url=thinking.url) as http:
        spoken = http.post("/v1/chat/completions", json=chat)
        read = http.post("/v1/audio/speech", json={"input": "Hello", "voice": "ethan"})
    assert (spoken.status_code, read.status_code) == (400, 400)
    error = spoken.json()["error"]
    assert (error["param"], error["code"]) == ("modalities", "invalid_value")
    assert "asks for audio; this model makes text" in error["message"]
    assert "text" in read.json()["error"]["message"]
