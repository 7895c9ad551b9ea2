"""Sessions on the real server: the model gets what a chat with the same messages gives it."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import SHORT
from support.realtime.client import PATH, Talk, silence, tone
from support.servers.server import TinyServer
from support.servers.snapshots import reported_page
from support.waiting import wait_until
from websockets.sync.client import connect

from omnistage.server.media.audio.wav import wav_header
from omnistage.server.runtime.samples import SampleFormat

NUM_TOKENS = 12
LOOK: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": {}}}

pytestmark = pytest.mark.engine


@pytest.fixture
def talk(server: TinyServer) -> Iterator[Talk]:
    """Turns by hand; answers are drawn greedily, in text."""
    url = server.url.replace("http", "ws", 1) + PATH
    with connect(url, open_timeout=600, close_timeout=5, compression=None, max_size=None) as ws:
        talk = Talk(ws)
        assert talk.event()["type"] == "session.created"
        talk.update(
            instructions="Be short.",
            temperature=0,
            output_modalities=["text"],
            max_output_tokens=NUM_TOKENS,
            audio={"input": {"turn_detection": None}},
        )
        yield talk
        talk.order.end()


class Both:
    """A session, and the messages of the chat that it should be."""

    def __init__(self, talk: Talk, server: TinyServer) -> None:
        self.talk = talk
        self._server = server
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be short."}]

    def write(self, text: str, place: int | None = None, **more: Any) -> str:
        part = {"type": "text", "text": text}
        at = len(self.messages) if place is None else place
        self.messages.insert(at, {"role": "user", "content": [part]})
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        self.talk.say("conversation.item.create", item=item, **more)
        return str(self.talk.until("conversation.item.done")["item"]["id"])

    def say(self) -> None:
        self.talk.append(SHORT)
        self.talk.say("input_audio_buffer.commit")
        self.talk.until("conversation.item.done")
        self.hear(SHORT.astype("<i2").tobytes())

    def hear(self, pcm: bytes) -> None:
        """Add audio to the chat's messages."""
        wav = wav_header(SampleFormat(24_000), len(pcm)) + pcm
        audio = {"data": base64.b64encode(wav).decode(), "format": "wav"}
        part = {"type": "input_audio", "input_audio": audio}
        self.messages.append({"role": "user", "content": [part]})

    def answer(self, **more: Any) -> dict[str, Any]:
        """Both answer; what they say and count is the same."""
        return self.compare(self.talk.answer(), **more)

    def compare(self, response: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The chat answers as a response of the session did."""
        assert response["status"] in ("completed", "incomplete"), response
        text = response["output"][0]["content"][0]["text"]
        body = {"model": self._server.model, "temperature": 0, "messages": self.messages, **more}
        body["max_completion_tokens"] = NUM_TOKENS
        url = f"{self._server.url}/v1/chat/completions"
        chat = httpx.post(url, json=body, timeout=600).json()
        assert text == chat["choices"][0]["message"]["content"]
        assert text
        usage, details = response["usage"], chat["usage"]["prompt_tokens_details"]
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert usage["output_tokens"] == chat["usage"]["completion_tokens"]
        audio_tokens = usage["input_token_details"]["audio_tokens"]
        assert audio_tokens == details["audio_tokens"]
        part = {"type": "text", "text": text}
        self.messages.append({"role": "assistant", "content": [part]})
        return dict(response["output"][0])


@pytest.fixture
def both(talk: Talk, server: TinyServer) -> Both:
    return Both(talk, server)


def test_turns_by_text_and_audio_are_the_chats(both: Both) -> None:
    both.write("Tell me of the sea.")
    both.answer()
    both.say()
    both.answer()
    for _ in range(5):
        both.say()
    both.write("What did I say?")
    both.answer()


def test_a_deleted_an_inserted_and_a_replayed_item_are_the_chats(both: Both) -> None:
    both.write("One.")
    item_id = both.write("Two.")
    both.answer()
    both.talk.say("conversation.item.delete", item_id=item_id)
    both.talk.until("conversation.item.deleted")
    del both.messages[2]
    both.write("Zero.", place=1, previous_item_id="root")
    both.answer()
    said = {"type": "message", "role": "assistant"}
    said["content"] = [{"type": "output_audio", "transcript": "So be it."}]  # type: ignore[assignment]
    both.talk.say("conversation.item.create", item=said)
    both.talk.until("conversation.item.done")
    part = {"type": "text", "text": "So be it."}
    both.messages.append({"role": "assistant", "content": [part]})
    both.write("And now?")
    both.answer()


def test_a_round_of_a_tool_is_the_chats(both: Both) -> None:
    both.talk.update(tools=[{"type": "function", **LOOK}])
    tools = [{"type": "function", "function": LOOK}]
    both.write("Look at the sea.")
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": json.dumps("waves")}
    for item in (call, output):
        both.talk.say("conversation.item.create", item=item)
        both.talk.until("conversation.item.done")
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    both.messages.append({"role": "assistant", "tool_calls": calls})
    both.messages.append({"role": "tool", "tool_call_id": "call_1", "content": '"waves"'})
    both.answer(tools=tools)


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(both: Both) -> None:
    talk = both.talk
    for number in range(8):  # some 1,600 tokens; the model takes 1,024
        talk.write(f"{number}: " + "sea " * 100)
        said = {"type": "message", "role": "assistant"}
        said["content"] = [{"type": "output_text", "text": "Yes."}]  # type: ignore[assignment]
        talk.say("conversation.item.create", item=said)
        talk.until("conversation.item.done")
    talk.update(truncation="disabled")
    both.write("And now?")
    error = talk.answer()["status_details"]["error"]
    assert error["code"] == "context_length_exceeded"
    talk.update(truncation="auto")
    response = talk.answer()
    assert response["status"] in ("completed", "incomplete")
    assert 300 < response["usage"]["input_tokens"] < 1024


def test_a_spoken_answer_is_heard_truncated_and_read_on(both: Both) -> None:
    talk = both.talk
    talk.update(output_modalities=["audio"])
    talk.write("Tell me of the sea.")
    response = talk.answer()
    (item,) = response["output"]
    whole = item["content"][0]["transcript"]
    pieces = [base64.b64decode(one["delta"]) for one in talk.told("response.output_audio.delta")]
    samples = np.frombuffer(b"".join(pieces), "<i2")
    assert len(samples)
    frames = response["usage"]["output_token_details"]["audio_tokens"]
    assert len(samples) == pytest.approx(frames * 1920, abs=1920)
    ms = len(samples) * 1000 // 24_000
    talk.say(
        "conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=ms // 2
    )
    talk.until("conversation.item.truncated")
    talk.say("conversation.item.retrieve", item_id=item["id"])
    heard = talk.until("conversation.item.retrieved")["item"]["content"][0]["transcript"]
    assert whole.startswith(heard)
    assert len(heard) < len(whole)
    talk.update(output_modalities=["text"])
    question = [{"type": "text", "text": "Tell me of the sea."}]
    both.messages.append({"role": "user", "content": question})
    if heard:
        both.messages.append({"role": "assistant", "content": [{"type": "text", "text": heard}]})
    both.write("Go on.")
    both.answer()


def num_used(server: TinyServer) -> int:
    """How many answers that were made ahead were sent."""
    page = httpx.get(f"{server.url}/metrics", timeout=600).text
    found = re.findall(r'^omnistage_realtime_ahead_total{outcome="used"} (\S+)', page, re.MULTILINE)
    return int(float(found[0])) if found else 0


def num_read(server: TinyServer) -> int:
    """How many requests the thinker has had."""
    count: int = server.health()["thinker"]["requests_total"]
    return count


def is_idle(server: TinyServer) -> bool:
    """Whether the thinker has no request."""
    return not server.health()["thinker"]["running"]


def test_an_answer_that_was_made_ahead_is_the_chats(both: Both, server: TinyServer) -> None:
    talk, before = both.talk, num_used(server)
    detection = {"type": "server_vad", "silence_duration_ms": 1000}
    talk.update(audio={"input": {"turn_detection": detection}})
    reported_page(server)
    num_asked = num_read(server)
    both.write("Tell me of the sea.")
    wait_until(lambda: num_read(server) == num_asked + 1 and is_idle(server))
    while num_used(server) < before + 2:  # a turn that ends seconds later is answered anew
        num_asked = num_read(server)
        talk.append(np.concatenate([silence(0.3), tone(0.8), silence(0.5)]))
        talk.until("input_audio_buffer.speech_started")
        wait_until(lambda asked=num_asked: num_read(server) > asked)  # type: ignore[misc]
        talk.append(silence(0.6))
        response = talk.until("response.done")["response"]
        item_id = talk.told("input_audio_buffer.committed")[-1]["item_id"]
        talk.say("conversation.item.retrieve", item_id=item_id)
        (part,) = talk.until("conversation.item.retrieved")["item"]["content"]
        both.hear(base64.b64decode(part["audio"]))
        both.compare(response)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_history_is_in_the_cache_with_its_rows_once_it_is_read(
    talk: Talk, server: TinyServer, is_read: bool
) -> None:
    """A spoken answer reads the prefix cache no further than to a sound whose rows nobody kept."""
    instructions = f"Be {'quite ' * 20}short {is_read}."
    talk.update(output_modalities=["audio" if is_read else "text"], instructions=instructions)
    audio = base64.b64encode(SHORT.astype("<i2").tobytes()).decode()
    part = {"type": "input_audio", "audio": audio}
    item = {"type": "message", "role": "user", "content": [part]}
    reported_page(server)
    before = num_read(server)
    talk.say("conversation.item.create", item=item)
    wait_until(lambda: num_read(server) == before + 1 and is_idle(server))
    talk.write("word " * 100)
    wait_until(lambda: num_read(server) == before + 2 and is_idle(server))
    usage = talk.answer(output_modalities=["audio"])["usage"]
    num_behind = usage["input_tokens"] - usage["input_token_details"]["cached_tokens"]
    assert (num_behind < 3 * 16) == is_read, usage
    wait_until(lambda: server.held() == {})
