"""What is asked of a chat, and what is read of its answer."""

import asyncio
import base64
import contextlib
from pathlib import Path
from typing import Any

import openai
import pytest
from support.bench.fake_openai import MODEL, FakeOpenAI, Script

from omnistage.demo.backend import Backend
from omnistage.demo.chat import ChatAnswer, ChatSettings, ChatTurn, ask, chat_request, content_of
from omnistage.demo.failure import plain
from omnistage.demo.files import FileStore
from omnistage.demo.sound import LatestSounds
from omnistage.demo.waterfall import Mark

QUESTION = ChatTurn("Hello?")


def settings(mode: str = "Text and speech", **more: Any) -> ChatSettings:
    return ChatSettings(MODEL, mode, "ethan", **more)


def asked(fake: FakeOpenAI, chosen: ChatSettings, answer: ChatAnswer | None = None) -> ChatAnswer:
    """The answer of a fake to one question."""
    read = answer or ChatAnswer(LatestSounds().open())

    async def run(url: str) -> None:
        async with Backend.connect(url, None, FileStore(Path())).client as client:
            async for _ in ask(client, chosen, [QUESTION], read):
                pass

    with fake.running() as url:
        asyncio.run(run(url))
    return read


def test_text_and_sound_of_a_stream_are_read() -> None:
    fake = FakeOpenAI(Script(text_s=[0.0, 0.0], packets=[(0.0, 0.5), (0.0, 0.25)]))
    answer = asked(fake, settings())
    assert answer.text == "word word "
    assert len(answer.sound.samples) == 0.75 * 24_000 * 2
    timing = answer.timing
    assert None not in (timing.first_text_s, timing.first_sound_s, timing.ended_s, timing.rtf)


def test_pictures_of_a_stream_are_read() -> None:
    answer = asked(FakeOpenAI(Script([0.0], images=2)), settings("Text and image"))
    assert answer.images == [base64.b64decode("AAAA")] * 2
    assert answer.timing.first_image_s is not None


@pytest.mark.parametrize("failing", [frozenset[int](), frozenset({0})])
def test_the_sound_ends_with_the_answer_and_with_a_failure(failing: frozenset[int]) -> None:
    fake = FakeOpenAI(Script([0.0], [(0.0, 0.1)], failing=failing, failure="event"))
    answer = ChatAnswer(LatestSounds().open())
    with pytest.raises(openai.APIError) if failing else contextlib.nullcontext():
        asked(fake, settings(), answer)

    async def read() -> list[bytes]:
        return [piece async for piece in answer.sound.read()]

    pieces = asyncio.run(asyncio.wait_for(read(), 600))
    assert bool(pieces) == (not failing)


@pytest.mark.parametrize(
    ("failure", "told"), [("status", "all slots are taken"), ("event", "a stage died")]
)
def test_a_failure_is_told_in_the_server_s_words(failure: str, told: str) -> None:
    fake = FakeOpenAI(Script([0.0], failing=frozenset({0}), failure=failure))
    with pytest.raises(openai.APIError) as raised:
        asked(fake, settings())
    assert plain(raised.value, "here") == told


def test_the_server_gets_what_the_reader_chose() -> None:
    fake = FakeOpenAI(Script([0.0]))
    chosen = settings(system="Be brief.", max_tokens=7, temperature=0.0, seed=3, has_timeline=True)
    asked(fake, chosen)
    assert fake.bodies == [
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hello?"}]},
            ],
            "modalities": ["text", "audio"],
            "audio": {"voice": "ethan", "format": "pcm16"},
            "max_completion_tokens": 7,
            "temperature": 0.0,
            "seed": 3,
            "stream": True,
            "return_timeline": True,
        }
    ]


def test_what_was_not_chosen_is_left_to_the_server() -> None:
    request = chat_request(settings("Text"), [QUESTION])
    assert request.keys() == {"model", "messages", "modalities", "stream"}
    assert request["modalities"] == ["text"]


def test_a_chat_of_pictures_asks_for_no_tokens_and_no_voice() -> None:
    chosen = settings("Text and image", max_tokens=7, temperature=1.0, has_timeline=True, seed=1)
    request = chat_request(chosen, [QUESTION])
    assert request.keys() == {"model", "messages", "modalities", "stream", "seed"}
    assert request["modalities"] == ["text", "image"]


def test_an_answer_with_speech_and_an_image_is_asked_for_with_its_voice() -> None:
    request = chat_request(settings("Text, speech and image", temperature=0.0), [QUESTION])
    assert request["modalities"] == ["text", "audio", "image"]
    assert (request["audio"]["voice"], request["temperature"]) == ("ethan", 0.0)


def test_earlier_turns_are_sent_but_for_those_that_failed() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    turns = [
        ChatTurn("one", parts=(part,), answer="first"),
        ChatTurn("two", answer="half", failure="broken"),
        ChatTurn("a picture", answer_files=("a.png",)),
        ChatTurn("three"),
    ]
    messages = chat_request(settings(), turns)["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [
        ("user", [part, {"type": "text", "text": "one"}]),
        ("assistant", "first"),
        ("user", [{"type": "text", "text": "a picture"}]),
        ("user", [{"type": "text", "text": "three"}]),
    ]


def test_stamps_of_a_timeline_are_read() -> None:
    answer = ChatAnswer(LatestSounds().open())
    chunk = openai.types.chat.ChatCompletionChunk.construct(
        choices=[], timeline=[{"stage": "talker", "event": "first_code", "ms": 1.5}]
    )
    answer.add(chunk)
    assert answer.marks == (Mark("talker", "first_code", 1.5),)


def test_the_bytes_of_a_data_url() -> None:
    assert content_of("data:image/png;base64,AAAA") == b"\0\0\0"
