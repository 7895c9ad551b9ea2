"""A session over its WebSocket: text and audio both ways, items, tools, cancels, refusals.

Every event that `Talk` gets is valid by OpenAI's specification, and in its order.
"""

import base64
import contextlib
import io
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from support import fake_stages
from support.fake_stages import SAMPLES_PER_FRAME
from support.gateway import MODEL, OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.realtime import PATH, Talk, silence, talking, tone
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from omnistage.server.endpoints.realtime import realtime
from omnistage.server.http.access.keys import Keys
from omnistage.server.media import containers, sound
from omnistage.server.media.sound import RawAudio
from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.answering import answer, answers
from omnistage.server.realtime.voice.formats import UserAudio, encoded

MANUAL = {"audio": {"input": {"turn_detection": None}}}
LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {}}
GO = {**LOOK, "name": "go"}
SPOKEN = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]


@pytest.fixture
def talk(gateway: RunningGateway) -> Iterator[Talk]:
    with talking(gateway, f"?model={MODEL}") as talk:
        talk.update(**MANUAL)
        yield talk
        talk.order.end()


def sound_of(talk: Talk) -> bytes:
    return b"".join(
        base64.b64decode(one["delta"]) for one in talk.told("response.output_audio.delta")
    )


def error_of(talk: Talk) -> dict[str, Any]:
    return dict(talk.until("error")["error"])


def last_messages(gateway: RunningGateway) -> list[dict[str, Any]]:
    """What the thinker was asked last."""
    body = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)
    return list(body["messages"])


# Answers


def test_an_answer_is_spoken_in_openais_order(talk: Talk) -> None:
    talk.write("Hello")
    response = talk.answer()
    kinds = [kind for kind in talk.kinds if not kind.endswith(".delta")]
    assert kinds[4:] == SPOKEN
    assert sound_of(talk) == np.arange(5 * SAMPLES_PER_FRAME, dtype="<i2").tobytes()
    words = [one["delta"] for one in talk.told("response.output_audio_transcript.delta")]
    assert words == ["Hel", "lo", " there"]
    assert response["output"][0]["content"] == [
        {"type": "output_audio", "transcript": "Hello there"}
    ]
    assert response["usage"]["total_tokens"] == 5 + 3 + 5
    assert response["usage"]["output_token_details"] == {"text_tokens": 3, "audio_tokens": 5}


def test_an_answer_in_text_has_no_audio(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("Hello")
    response = talk.answer(output_modalities=["text"], instructions="Be short.")
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "Hello there"}]
    assert not [kind for kind in talk.kinds if "audio" in kind]
    system, user = last_messages(gateway)
    assert (system["role"], system["content"]) == ("system", "Be short.")
    assert user["content"] == [{"type": "text", "text": "Hello"}]


def test_the_conversation_grows_with_its_answers(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("Hello")
    talk.answer()
    talk.write("And now?")
    talk.answer()
    said = [(one["role"], one["content"][0]["text"]) for one in last_messages(gateway)]
    assert said == [("user", "Hello"), ("assistant", "Hello there"), ("user", "And now?")]


def test_an_empty_conversation_can_be_answered(talk: Talk) -> None:
    assert talk.answer()["status"] == "completed"


@pytest.mark.parametrize("form", ["audio/pcmu", "audio/pcma"])
def test_g711_goes_both_ways(talk: Talk, gateway: RunningGateway, form: str) -> None:
    given = {"format": {"type": form}}
    told = talk.update(audio={"input": {**given, "turn_detection": None}, "output": given})
    assert told["audio"]["input"]["format"] == {"type": form}
    data = encoded(tone(0.5, 8000), form)
    talk.say("input_audio_buffer.append", audio=base64.b64encode(data).decode())
    talk.say("input_audio_buffer.commit")
    item = talk.until("conversation.item.done")["item"]
    talk.say("conversation.item.retrieve", item_id=item["id"])
    part = talk.until("conversation.item.retrieved")["item"]["content"][0]
    assert base64.b64decode(part["audio"]) == data
    talk.answer()
    ramp = np.arange(5 * SAMPLES_PER_FRAME, dtype=np.int16)
    assert abs(len(sound_of(talk)) - len(ramp) / 3) <= 16
    del gateway


def test_speed_and_limit_of_a_session_hold(talk: Talk, gateway: RunningGateway) -> None:
    talk.update(audio={"output": {"speed": 0.5, "voice": "ethan"}}, max_output_tokens=7)
    response = talk.answer()
    assert len(sound_of(talk)) == pytest.approx(2 * 5 * SAMPLES_PER_FRAME * 2, rel=0.02)
    assert (response["max_output_tokens"], response["audio"]["output"]["voice"]) == (7, "ethan")
    thinker = gateway.do(lambda: gateway.stages.stages["thinker"].last_request)
    assert (thinker.fields["max_completion_tokens"], thinker.speaker) == (7, "ethan")


@pytest.mark.parametrize("voice", ["alloy", "marin", "cedar", "Ethan"])
def test_openais_voices_are_the_models_own(talk: Talk, voice: str) -> None:
    talk.update(audio={"output": {"voice": voice}})
    assert talk.answer()["status"] == "completed"


def test_an_unknown_voice_is_refused_before_an_answer(talk: Talk) -> None:
    talk.say("session.update", session={"type": "realtime", "audio": {"output": {"voice": "me"}}})
    error = error_of(talk)
    assert error["param"] == "session.audio.output.voice"
    assert "chelsie" in error["message"]


@pytest.mark.parametrize(
    ("script", "reason"), [("cut", "max_output_tokens"), ("silent", None), ("think", None)]
)
def test_how_an_answer_ended_is_told(talk: Talk, script: str, reason: str | None) -> None:
    talk.write(script)
    response = talk.answer(output_modalities=["text"])
    assert response["status"] == ("completed" if reason is None else "incomplete")
    assert (response["status_details"] or {}).get("reason") == reason
    assert len(response["output"]) == 1


# Audio in


def test_audio_that_is_committed_is_what_the_model_hears(
    talk: Talk, gateway: RunningGateway
) -> None:
    sound = tone(0.5)
    for piece in np.split(sound, 10):
        talk.append(piece)
    talk.say("input_audio_buffer.commit")
    committed = talk.until("input_audio_buffer.committed")
    item = talk.until("conversation.item.done")["item"]
    assert item["id"] == committed["item_id"]
    assert item["content"] == [{"type": "input_audio", "transcript": None}]
    talk.say("conversation.item.retrieve", item_id=item["id"])
    part = talk.until("conversation.item.retrieved")["item"]["content"][0]
    assert base64.b64decode(part["audio"]) == sound.astype("<i2").tobytes()
    talk.answer()
    assert last_messages(gateway)[0]["content"][0]["type"] == "audio_url"


def test_audio_of_a_session_goes_to_stages_without_being_made_a_file(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file is made or read")

    for reader in ("opened", "first_stream"):
        monkeypatch.setattr(containers, reader, refuse)
    monkeypatch.setattr(sound, "first_stream", refuse)
    monkeypatch.setattr(UserAudio, "to_wav", refuse)
    given = tone(0.5)
    talk.append(given)
    talk.say("input_audio_buffer.commit")
    assert talk.answer()["status"] == "completed"
    thinker = gateway.stages.stages["thinker"]
    pieces = [one for one in thinker.seen if one.request_id == thinker.opened[-1].request_id]
    heard = pieces[0].tensors["data"].numpy()
    (expected,) = sound.SoundTrack(RawAudio(given, 24_000), "audio").samples(16_000)
    assert np.array_equal(heard, expected)


def test_no_answer_is_made_of_audio_unasked(talk: Talk) -> None:
    talk.append(tone(0.5))
    talk.append(silence(2))
    talk.say("input_audio_buffer.commit")
    talk.until("conversation.item.done")
    assert talk.is_quiet()


@pytest.mark.parametrize("seconds", [0.0, 0.099])
def test_a_buffer_under_100_ms_is_not_committed(talk: Talk, seconds: float) -> None:
    talk.append(tone(seconds))
    talk.say("input_audio_buffer.commit", event_id="mine")
    error = error_of(talk)
    assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "mine")


def test_a_cleared_buffer_is_empty(talk: Talk) -> None:
    talk.append(tone(1))
    talk.say("input_audio_buffer.clear")
    talk.until("input_audio_buffer.cleared")
    talk.say("input_audio_buffer.commit")
    assert error_of(talk)["code"] == "input_audio_buffer_commit_empty"


@pytest.mark.parametrize("audio", ["?", "AAA", "AA==", 5, None])
def test_audio_that_is_none_is_refused(talk: Talk, audio: Any) -> None:
    talk.say("input_audio_buffer.append", audio=audio)
    assert error_of(talk)["param"] == "audio"


# Items


def test_items_are_put_where_the_client_says(talk: Talk, gateway: RunningGateway) -> None:
    def create(item_id: str, previous: str | None) -> None:
        item = {"id": item_id, "type": "message", "role": "user"}
        item["content"] = [{"type": "input_text", "text": item_id}]  # type: ignore[assignment]
        talk.say("conversation.item.create", item=item, previous_item_id=previous)
        assert talk.until("conversation.item.done")["item"]["id"] == item_id

    create("second", None)
    create("first", "root")
    create("third", "second")
    talk.say("conversation.item.delete", item_id="second")
    talk.until("conversation.item.deleted")
    create("last", "third")
    assert talk.order.items == ["first", "third", "last"]
    talk.answer()
    assert [one["content"][0]["text"] for one in last_messages(gateway)] == talk.order.items[:3]


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("conversation.item.retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id"),
        ("conversation.item.delete", {"item_id": "x"}, "item_delete_invalid_item_id"),
        (
            "conversation.item.truncate",
            {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
            "item_truncate_invalid_item_id",
        ),
        ("conversation.item.create", {"item": {"type": "mcp_call"}}, "unsupported_parameter"),
        ("conversation.item.create", {}, "invalid_value"),
        ("output_audio_buffer.clear", {}, "invalid_value"),
        ("response.cancel", {}, "response_cancel_not_active"),
        ("response.cancel", {"response_id": "resp_x"}, "response_cancel_not_active"),
        ("response.create", {"response": {"tools": [{"type": "mcp"}]}}, "unsupported_parameter"),
        ("response.create", {"response": {"input": [5]}}, "invalid_value"),
        ("response.create", {"response": {"max_output_tokens": 0}}, "invalid_value"),
        (
            "response.create",
            {"response": {"input": [{"type": "item_reference", "id": "x"}]}},
            "invalid_value",
        ),
        ("session.update", {"session": {"type": "realtime", "model": "other"}}, "model_not_found"),
        ("session.update", {}, "invalid_value"),
        ("unknown.event", {}, "invalid_value"),
    ],
)
def test_what_cannot_be_done_is_told_by_the_events_id(
    talk: Talk, kind: str, fields: dict[str, Any], code: str
) -> None:
    talk.say(kind, event_id="mine", **fields)
    error = error_of(talk)
    assert (error["code"], error["event_id"]) == (code, "mine")
    if code == "response_cancel_not_active":
        assert error["message"].startswith("Cancellation failed")
    assert talk.answer()["status"] == "completed"  # the session goes on


def test_an_item_twice_is_refused(talk: Talk) -> None:
    talk.write("Hello", id="item_1")
    item = {"id": "item_1", "type": "message", "role": "user", "content": []}
    talk.say("conversation.item.create", item=item)
    assert error_of(talk)["code"] == "item_create_duplicate_item_id"


def test_an_answer_is_truncated_to_what_was_heard(talk: Talk, gateway: RunningGateway) -> None:
    item_id = talk.answer()["output"][0]["id"]  # "Hello there" in 100 ms

    def truncate(end_ms: int) -> None:
        place = {"item_id": item_id, "content_index": 0, "audio_end_ms": end_ms}
        talk.say("conversation.item.truncate", **place)

    truncate(201)
    assert "is already shorter than 201ms" in error_of(talk)["message"]
    truncate(150)
    talk.until("conversation.item.truncated")
    truncate(60)
    assert talk.until("conversation.item.truncated")["audio_end_ms"] == 60
    talk.say("conversation.item.retrieve", item_id=item_id)
    item = talk.until("conversation.item.retrieved")["item"]
    assert item["content"] == [{"type": "output_audio", "transcript": "Hello"}]
    talk.write("And?")
    talk.answer()
    assert last_messages(gateway)[0]["content"] == [{"type": "text", "text": "Hello"}]


def test_an_image_is_read_when_it_comes(talk: Talk, gateway: RunningGateway) -> None:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    content = [{"type": "input_image", "image_url": url}]
    item = {"type": "message", "role": "user", "content": content}
    talk.say("conversation.item.create", item=item)
    assert talk.until("conversation.item.done")["item"]["content"][0]["image_url"] == url
    talk.answer()
    assert last_messages(gateway)[0]["content"][0]["type"] == "image_url"
    broken = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    talk.say("conversation.item.create", item={**item, "content": [broken]})
    assert (error_of(talk)["param"] or "").startswith("item.content")


# Tools


def test_a_call_is_told_and_its_output_read(talk: Talk, gateway: RunningGateway) -> None:
    talk.update(tools=[LOOK, GO])
    talk.write("tool")
    (item,) = talk.answer()["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "look", '{"at":1}')
    assert len(item["call_id"]) <= 32
    added = talk.told("conversation.item.added")[-1]["item"]
    assert (added["name"], added["call_id"]) == ("look", item["call_id"])
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "sun"}
    talk.say("conversation.item.create", item=output)
    talk.until("conversation.item.done")
    assert talk.answer()["status"] == "completed"
    call, result = last_messages(gateway)[1:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == item["call_id"]
    assert result["content"] == "sun"


@pytest.mark.parametrize("modality", ["text", "audio"])
def test_calls_come_behind_what_was_said(talk: Talk, modality: str) -> None:
    talk.update(tools=[LOOK, GO], output_modalities=[modality])
    talk.write("two tools")
    said, look, go = talk.answer()["output"]
    part = said["content"][0]
    assert (part.get("transcript") or part["text"]) == "Well"
    assert (look["name"], go["name"]) == ("look", "go")
    assert look["call_id"] != go["call_id"]


# Responses beside each other


def test_a_second_response_of_the_conversation_is_refused(talk: Talk) -> None:
    talk.write("endless")
    talk.say("response.create")
    response_id = talk.until("response.created")["response"]["id"]
    talk.say("response.create", event_id="second")
    error = error_of(talk)
    assert error["code"] == "conversation_already_has_active_response"
    assert (error["event_id"], response_id in error["message"]) == ("second", True)
    talk.say("response.cancel")
    assert talk.until("response.done")["response"]["id"] == response_id


def test_a_cancelled_response_frees_its_stages(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("endless")
    talk.say("response.create")
    talk.until("response.output_audio.delta")
    talk.say("response.cancel")
    response = talk.until("response.done")["response"]
    details = {"type": "cancelled", "reason": "client_cancelled"}
    assert (response["status"], response["status_details"]) == ("cancelled", details)
    assert response["output"][0]["status"] == "incomplete"
    gateway.wait_until_idle()
    assert talk.is_quiet()
    talk.write("Hello")
    assert talk.answer()["status"] == "completed"


def test_responses_out_of_band_leave_the_conversation_alone(
    talk: Talk, gateway: RunningGateway
) -> None:
    talk.write("Hello", id="item_1")
    reference = {"type": "item_reference", "id": "item_1"}
    own = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Own"}]}
    response = talk.answer(conversation="none", input=[reference, own], metadata={"a": "b"})
    assert (response["conversation_id"], response["metadata"]) == (None, {"a": "b"})
    assert [one["content"][0]["text"] for one in last_messages(gateway)] == ["Hello", "Own"]
    assert talk.order.items == ["item_1"]
    talk.answer(conversation="none", input=[], instructions="Greet.")
    assert [one["role"] for one in last_messages(gateway)] == ["system"]


def test_out_of_band_responses_are_bounded_and_cancelled_by_id(talk: Talk) -> None:
    content = [{"type": "input_text", "text": "endless"}]
    given = [{"type": "message", "role": "user", "content": content}]
    for _ in range(answers.MAX_OUT_OF_BAND + 1):
        talk.say("response.create", response={"conversation": "none", "input": given})
    assert error_of(talk)["code"] == "too_many_responses"
    talk.answer()  # one of the conversation beside them
    begun = [one["response"]["id"] for one in talk.told("response.created")]
    for response_id in begun[: answers.MAX_OUT_OF_BAND]:
        talk.say("response.cancel", response_id=response_id)
        while talk.until("response.done")["response"]["id"] != response_id:
            pass


# Failures


@pytest.mark.parametrize(("script", "begins"), [("refuse", False), ("fail later", True)])
def test_a_failed_response_ends_and_the_session_goes_on(
    talk: Talk, script: str, begins: bool
) -> None:
    talk.write(script)
    response = talk.answer()
    assert response["status"] == "failed"
    error = response["status_details"]["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"]
    assert bool(response["output"]) == begins
    talk.write("Hello")
    assert talk.answer()["status"] == "completed"


@pytest.mark.parametrize(
    ("truncation", "lengths"),
    [
        ("auto", [7, 5, 3, 1]),
        ("disabled", [7]),
        ({"type": "retention_ratio", "retention_ratio": 0.5}, [7, 3, 1]),
    ],
)
def test_a_conversation_that_is_too_long_is_shortened_by_turns(
    talk: Talk, gateway: RunningGateway, truncation: Any, lengths: list[int]
) -> None:
    """The fake thinker refuses the last text, however long the chat is."""
    talk.update(output_modalities=["text"], truncation=truncation)
    for _ in range(3):
        talk.write("Hello")
        talk.answer()
    talk.write("refuse")
    opened = gateway.stages.stages["thinker"].opened
    before = gateway.do(lambda: len(opened))
    assert talk.answer()["status_details"]["error"]["code"] == "context_length_exceeded"
    chats = gateway.do(lambda: [one.message.fields for one in opened[before:]])
    answers = [chat for chat in chats if chat.get("max_completion_tokens") != 1]  # else read ahead
    assert [len(chat["messages"]) for chat in answers] == lengths
    talk.write("Hello")  # what was left out stays so
    talk.answer()
    assert len(last_messages(gateway)) == lengths[-1] + 1


@pytest.mark.parametrize(
    ("settings", "num_turns"),
    [
        ({"output_modalities": ["text"]}, 4),  # the thinker takes 128 tokens, 32 of them its own
        ({"output_modalities": ["audio"]}, 1),  # the talker 64, 16 of them for frames
        ({"output_modalities": ["audio"], "truncation": "disabled"}, 4),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 1.0}}, 2),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 0.0}}, 1),
        (
            {
                "output_modalities": ["text"],
                "truncation": {
                    "type": "retention_ratio",
                    "retention_ratio": 1.0,
                    "token_limits": {"post_instructions": 62},
                },
            },
            3,
        ),
    ],
)
def test_a_conversation_has_room_for_its_answer_at_every_stage(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, settings: Any, num_turns: int
) -> None:
    """Four turns of some 20 tokens each; none has been answered, so they are estimated."""
    monkeypatch.setitem(fake_stages.LENGTHS, "talker", 64)
    with running_gateway(tmp_path, OMNI) as gateway, talking(gateway) as talk:
        talk.update(**settings)
        for _ in range(4):
            talk.write("x" * 40)
            said = [{"type": "output_text", "text": "y" * 30}]
            item = {"type": "message", "role": "assistant", "content": said}
            talk.say("conversation.item.create", item=item)
            talk.until("conversation.item.done")
        assert talk.answer()["status"] == "completed"
        assert len(last_messages(gateway)) == 2 * num_turns


def test_a_session_outlives_its_stages(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI) as gateway, talking(gateway) as talk:
        talk.update(**MANUAL)
        talk.write("pause")
        talk.say("response.create")
        talk.until("response.output_audio_transcript.delta")
        gateway.do(gateway.stages.stages["thinker"].kill)
        response = talk.until("response.done")["response"]
        assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")
        wait_until(lambda: httpx.get(f"{gateway.url}/ready").status_code == 200)
        talk.write("Hello")
        assert talk.answer()["status"] == "completed"
        roles = [one["role"] for one in last_messages(gateway)]
        assert roles == ["user", "assistant", "user"]
        talk.order.end()


def test_a_rate_that_is_used_up_fails_the_response(tmp_path: Any) -> None:
    with (
        running_gateway(tmp_path, OMNI, requests_per_minute=1) as gateway,
        talking(gateway) as talk,
    ):
        assert talk.answer()["status"] == "completed"
        response = talk.answer()
        assert response["status_details"]["error"]["code"] == "rate_limit_exceeded"


# Other shapes of the API


def test_beta_has_its_own_names(gateway: RunningGateway) -> None:
    url = gateway.url.replace("http", "ws", 1) + PATH
    headers = {"OpenAI-Beta": "realtime=v1"}
    with connect(url, additional_headers=headers, compression=None) as ws:

        def until(kind: str) -> dict[str, Any]:
            while True:
                event: dict[str, Any] = json.loads(ws.recv(timeout=600))
                kinds.append(event["type"])
                if event["type"] == kind:
                    return event

        kinds: list[str] = []
        told = until("session.created")["session"]
        assert told["modalities"] == ["audio", "text"]
        assert (told["input_audio_format"], told["turn_detection"]["type"]) == (
            "pcm16",
            "server_vad",
        )
        update = {"turn_detection": None, "output_audio_format": "g711_ulaw", "voice": "ethan"}
        ws.send(json.dumps({"type": "session.update", "session": update}))
        told = until("session.updated")["session"]
        assert (told["turn_detection"], told["output_audio_format"], told["voice"]) == (
            None,
            "g711_ulaw",
            "ethan",
        )
        item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}]}
        ws.send(json.dumps({"type": "conversation.item.create", "item": item}))
        assert until("conversation.item.created")["item"]["content"] == item["content"]
        ws.send(json.dumps({"type": "response.create", "response": {"modalities": ["text"]}}))
        response = until("response.done")["response"]
        assert response["output"][0]["content"] == [{"type": "text", "text": "Hello there"}]
        assert (response["modalities"], response["voice"]) == (["text"], "ethan")
        assert {"response.text.delta", "response.text.done"} <= set(kinds)
        ws.send(json.dumps({"type": "response.create"}))
        until("response.done")
        assert {"response.audio.delta", "response.audio_transcript.done"} <= set(kinds)
        assert not [kind for kind in kinds if "output_" in kind and "item" not in kind]
        assert "conversation.item.done" not in kinds
    gateway.wait_until_idle()


def test_a_model_without_speech_answers_in_text(tmp_path: Any) -> None:
    with running_gateway(tmp_path, TEXT_ONLY) as gateway, talking(gateway) as talk:
        assert talk.events[0]["session"]["output_modalities"] == ["text"]
        assert talk.answer()["output"][0]["content"][0]["type"] == "output_text"
        talk.say("session.update", session={"type": "realtime", "output_modalities": ["audio"]})
        assert error_of(talk)["code"] == "unsupported_model"


# Connections


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["realtime"], "realtime"),
        (["openai-insecure-api-key.x", "realtime", "openai-agents-sdk.1"], "realtime"),
        (["other"], None),
    ],
)
def test_the_subprotocol_is_realtime_or_none(
    gateway: RunningGateway, offered: list[str], chosen: str | None
) -> None:
    url = gateway.url.replace("http", "ws", 1) + PATH
    protocols = [Subprotocol(one) for one in offered] or None
    with connect(url, subprotocols=protocols, compression=None) as ws:
        assert ws.subprotocol == chosen


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?model=other", 404, "model_not_found"),
        ("?call_id=rtc_1", 404, "call_not_found"),
    ],
)
def test_what_cannot_be_opened_is_refused_before(
    gateway: RunningGateway, query: str, status: int, code: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(gateway.url.replace("http", "ws", 1) + PATH + query)
    assert refused.value.response.status_code == status
    body = json.loads(refused.value.response.body or b"")
    assert body["error"]["code"] == code


def test_the_key_comes_by_header_or_subprotocol(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI, keys=Keys(["sk-ann"])) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        with connect(url, additional_headers={"Authorization": "Bearer sk-ann"}):
            pass
        offered = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.sk-ann")]
        with connect(url, subprotocols=offered) as ws:
            assert ws.subprotocol == "realtime"
        for wrong in ({}, {"Authorization": "Bearer sk-bob"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(url, additional_headers=wrong)
            assert refused.value.response.status_code == 401


def test_sessions_are_bounded(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI, sessions=SessionBounds(max_sessions=1)) as gateway:
        check_bound(gateway)


def check_bound(gateway: RunningGateway) -> None:
    with talking(gateway):
        with pytest.raises(InvalidStatus) as refused:
            connect(gateway.url.replace("http", "ws", 1) + PATH)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
    wait_until(lambda: is_open(gateway))


def is_open(gateway: RunningGateway) -> bool:
    with contextlib.suppress(InvalidStatus), talking(gateway):
        return True
    return False


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\0", "invalid_json"),
        ("nonsense", "invalid_json"),
        ("[]", "invalid_json"),
        ("{}", "invalid_event"),
        ('{"type": 5}', "invalid_event"),
    ],
)
def test_a_frame_that_is_no_event_is_refused(talk: Talk, frame: str | bytes, code: str) -> None:
    talk.ws.send(frame)
    assert error_of(talk)["code"] == code


def closed(talk: Talk) -> int:
    """The code with which it is closed, after what comes before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            talk.event()
    assert talk.ws.close_code is not None
    return talk.ws.close_code


def test_errors_one_after_the_other_end_the_session(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        for number in range(2 * realtime.MAX_ERRORS - 2):
            talk.say("unknown" if number != realtime.MAX_ERRORS - 1 else "input_audio_buffer.clear")
        assert talk.answer()["status"] == "completed"
        for _ in range(realtime.MAX_ERRORS):
            talk.say("unknown")
        assert closed(talk) == 1008
        assert len(talk.told("error")) == 3 * realtime.MAX_ERRORS - 3


def test_an_event_that_is_too_long_ends_the_session(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        talk.say("input_audio_buffer.append", audio="A" * (1 << 20))
        assert closed(talk) == 1009
        assert talk.told("error")[0]["error"]["code"] == "request_too_large"


def test_a_session_expires(tmp_path: Any) -> None:
    bounds = SessionBounds(length_s=1)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        assert talk.events[0]["session"]["expires_at"] <= time.time() + 1
        assert closed(talk) == 1001
        assert talk.events[-1]["error"]["code"] == "session_expired"


def test_an_idle_session_is_closed(tmp_path: Any) -> None:
    bounds = SessionBounds(idle_s=20)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        talk.write("wait")
        talk.say("response.create")
        gateway.wait_until_waiting()
        gateway.pass_over(25)  # an answer that lasts is no idleness
        gateway.go_on()
        assert talk.until("response.done")["response"]["status"] == "completed"
        talk.update()
        gateway.pass_over(25)
        assert closed(talk) == 1001
        assert talk.events[-1]["error"]["code"] == "idle_timeout"


def num_asked(gateway: RunningGateway) -> int:
    """Count the answers that the thinker was asked for, without histories that are read ahead."""
    opened = gateway.stages.stages["thinker"].opened
    return sum(not one.message.keeps_rows for one in opened)


def test_a_client_that_reads_nothing_is_cut_off(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "SLOW_S", 0.3)
    with talking(gateway, max_queue=1) as talk:
        talk.update(**MANUAL)
        talk.write("flood")
        num_before = gateway.do(lambda: num_asked(gateway))
        talk.say("response.create")
        wait_until(lambda: gateway.do(lambda: num_asked(gateway)) > num_before)
        gateway.wait_until_idle()


def test_a_client_that_leaves_frees_its_stages(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        talk.write("endless")
        talk.say("response.create")
        talk.until("response.output_audio.delta")
        talk.ws.socket.close()
    gateway.wait_until_idle()


def takes_connections(gateway: RunningGateway) -> bool:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=600):
        return True
    return False


def test_a_server_that_stops_ends_the_answer_first(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI, stop_s=60) as gateway:
        url = gateway.url.replace("http", "ws", 1) + PATH
        with connect(url, compression=None) as ws:
            talk = Talk(ws)
            talk.write("wait")
            talk.say("response.create")
            gateway.wait_until_waiting()
            gateway.stop()
            wait_until(lambda: not takes_connections(gateway))
            gateway.go_on()
            assert closed(talk) == 1012
            assert talk.events[-1]["response"]["status"] == "completed"
