"""Items of a session: audio, images, calls, where they are put, how they are cut."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.gateway.serving import RunningGateway
from support.realtime.client import Talk, silence, tone
from support.realtime.talk import error_of, last_messages

from omnistage.server.media import containers, sound
from omnistage.server.media.sound import RawAudio
from omnistage.server.realtime.voice.formats import UserAudio

LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {}}
GO = {**LOOK, "name": "go"}


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
