"""Clients as they are: OpenAI's SDK, and what others send by themselves, to the last default."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from support.gateway.cascade import CASCADE, SPEECH
from support.gateway.serving import MODEL, RunningGateway, running_gateway
from support.realtime.client import Talk, silence, talking, tone

from omnistage.server.endpoints.realtime import realtime

EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK: dict[str, Any] = {"type": "function", "name": "look", "description": "x", "parameters": CITY}


@pytest.fixture(autouse=True)
def by_loudness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "silero_file", lambda: None)


def user(text: str) -> Any:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


@pytest.fixture(params=["omni", "cascade"], scope="module")
def either(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """One model that hears and speaks, or three that no edge joins."""
    if request.param == "omni":
        yield request.getfixturevalue("gateway")
        return
    with running_gateway(tmp_path_factory.mktemp("cascade"), CASCADE, speech=SPEECH) as running:
        yield running


async def test_openais_sdk_talks_and_every_event_is_one_of_its_classes(
    either: RunningGateway,
) -> None:
    gateway = either
    client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none")
    kinds: list[str] = []
    async with client.realtime.connect(model=MODEL) as connection:

        async def until(kind: str) -> Any:
            while True:
                event = EVENT.validate_json(await connection.recv_bytes())
                kinds.append(event.type)
                assert event.type != "error", event
                if event.type == kind:
                    return event

        created = await until("session.created")
        assert created.session.id.startswith("sess_")
        session: Any = {"type": "realtime", "output_modalities": ["audio"], "tools": [LOOK]}
        await connection.session.update(session=session)
        await until("session.updated")
        await connection.conversation.item.create(item=user("tool"))
        await connection.response.create()
        done = await until("response.done")
        call = done.response.output[0]
        assert (call.type, call.name) == ("function_call", "look")
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "{}"}
        await connection.conversation.item.create(item=output)
        await connection.response.create()
        done = await until("response.done")
        item = done.response.output[0]
        assert item.content[0].transcript == "Hello there"
        await connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=50
        )
        await until("conversation.item.truncated")
        alone: Any = {"conversation": "none", "metadata": {"a": "b"}, "input": []}
        await connection.response.create(response=alone)
        done = await until("response.done")
        assert done.response.metadata == {"a": "b"}
        for piece in np.split(np.concatenate([tone(0.5), silence(0.8)]), 13):
            audio = base64.b64encode(piece.astype("<i2").tobytes()).decode()
            await connection.input_audio_buffer.append(audio=audio)
        spoken = await until("input_audio_buffer.committed")
        await until("response.done")
        await connection.conversation.item.delete(item_id=spoken.item_id)
        await until("conversation.item.deleted")
    await client.close()
    gateway.wait_until_idle()
    assert len(set(kinds)) >= 20


# What each sends, in its own order; what depends on the server is filled in.

PCM = {"type": "audio/pcm", "rate": 24_000}
AGENTS_JS = {
    "type": "realtime",
    "instructions": "Be short.",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": PCM,
            "noise_reduction": None,
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "turn_detection": {"type": "semantic_vad"},
        },
        "output": {"format": PCM, "speed": 1},
    },
    "tools": [{**LOOK, "parameters": {"$schema": "http://json-schema.org/draft-07/schema#"}}],
}
LIVEKIT = {
    "type": "realtime",
    "audio": {
        "input": {
            "format": PCM,
            "noise_reduction": None,
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "turn_detection": {
                "type": "semantic_vad",
                "create_response": True,
                "eagerness": "medium",
                "interrupt_response": True,
            },
        },
        "output": {"format": PCM, "speed": 1.0, "voice": "marin"},
    },
    "max_output_tokens": "inf",
    "model": MODEL,
    "output_modalities": ["audio"],
    "tool_choice": "auto",
    "tracing": None,
}
PIPECAT = {
    "type": "realtime",
    "model": MODEL,
    "output_modalities": ["audio"],
    "instructions": "Be short.",
    "audio": {"input": {"transcription": {"model": "any"}}, "output": {"voice": "alloy"}},
    "tools": [LOOK],
}
OPEN_WEBUI = {
    "type": "realtime",
    "output_modalities": ["audio"],
    "instructions": "...",
    "audio": {
        "input": {
            "format": PCM,
            "transcription": {"model": "any"},
            "turn_detection": {
                "type": "server_vad",
                "interrupt_response": False,
                "create_response": False,
            },
        },
        "output": {"format": PCM, "voice": "alloy"},
    },
    "tools": [{**LOOK, "name": "generate_chat_completion"}],
    "tool_choice": "auto",
}
CLIENTS = {
    "agents-js": AGENTS_JS,
    "LiveKit": LIVEKIT,
    "Pipecat": PIPECAT,
    "Open WebUI": OPEN_WEBUI,
}


@pytest.fixture(params=CLIENTS)
def talk(gateway: RunningGateway, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """After the first update, which is answered by the second event."""
    with talking(gateway, f"?model={MODEL}") as talk:
        talk.say("session.update", session=CLIENTS[request.param], event_id="update_1")
        assert talk.event()["type"] == "session.updated"
        yield talk
        assert not talk.told("error")
        talk.order.end()


def test_a_default_session_is_updated_as_the_very_next_event(talk: Talk) -> None:
    session = talk.events[-1]["session"]
    detection = session["audio"]["input"]["turn_detection"]
    assert isinstance(detection["interrupt_response"], bool)
    assert isinstance(detection["create_response"], bool)
    assert session["tool_choice"] == "auto"
    talk.say("session.update", session={"type": "realtime", "tracing": "auto"})
    assert talk.until("session.updated")["session"]["tools"] == session["tools"]


def test_a_tool_round_of_a_client(talk: Talk) -> None:
    for text, item_id in (("tool", "4d645439e71b4f2a9949d844b5f6cb65"), ("x", "item_ebec1c5f604a")):
        item = {**user(text), "id": item_id}
        talk.say("conversation.item.create", item=item, previous_item_id="root")
        assert talk.until("conversation.item.done")["item"]["id"] == item_id
    asked = {"instructions": None, "metadata": {"client_event_id": "response_create_1"}}
    talk.say("response.create", event_id="response_create_1", response=asked)
    created = talk.until("response.created")["response"]
    assert created["metadata"] == asked["metadata"]
    (call,) = talk.until("response.done")["response"]["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    talk.say("conversation.item.create", item=output, previous_item_id=call["id"])
    talk.until("conversation.item.done")
    assert talk.answer()["status"] == "completed"


def test_a_spoken_turn_is_interrupted_truncated_and_read_again(talk: Talk) -> None:
    """Clients truncate what they had deleted or had whole, too, and read what came of it."""
    talk.write("endless")
    talk.say("response.create")
    item_id = talk.until("response.output_audio.delta")["item_id"]
    talk.append(np.concatenate([tone(0.5), silence(1.0)]))
    detection = talk.told("session.updated")[-1]["session"]["audio"]["input"]["turn_detection"]
    talk.until("input_audio_buffer.speech_started")
    if not detection["interrupt_response"]:
        talk.say("response.cancel")
    talk.until("response.done")
    place = {"item_id": item_id, "content_index": 0, "audio_end_ms": 20}
    talk.say("conversation.item.truncate", **place)
    talk.until("conversation.item.truncated")
    talk.say("conversation.item.retrieve", item_id=item_id)
    talk.until("conversation.item.retrieved")
    while not talk.told("input_audio_buffer.committed"):
        talk.event()
    if detection["create_response"]:
        while len(talk.told("response.done")) < 2:
            talk.event()
    else:
        talk.answer(metadata={"input_item_id": "x"})
        status = {"conversation": "none", "input": [], "tools": [], "tool_choice": "none"}
        talk.answer(**status, instructions="Say this.", metadata={"status": "working"})
        talk.answer(tools=[], tool_choice="auto", metadata={"call_id": "x"})
