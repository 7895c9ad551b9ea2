"""Turns that the server detects, and what happens when somebody speaks into an answer.

Speech is told by loudness here, whatever is installed.
"""

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import fake_stages
from support.gateway import OMNI, RunningGateway, running_gateway
from support.onnx_files import model
from support.realtime import Talk, silence, talking, tone
from support.waiting import wait_until

from omnistage.server.realtime import listener
from omnistage.server.realtime.answering import response

Json = dict[str, Any]

PCM = {"type": "audio/pcm", "rate": 24_000}

pytestmark = pytest.mark.usefixtures("by_loudness")


@pytest.fixture
def talk(gateway: RunningGateway) -> Iterator[Talk]:
    with talking(gateway) as talk:
        yield talk


def detect(talk: Talk, kind: str = "server_vad", **fields: Any) -> None:
    talk.update(audio={"input": {"turn_detection": {"type": kind, **fields}}})


def speak(talk: Talk, seconds: float = 0.5, quiet: float = 0.8) -> None:
    """In pieces of 20 ms, as fast as they are taken."""
    sound = np.concatenate([tone(seconds), silence(quiet)])
    for piece in np.split(sound, range(480, len(sound), 480)):
        talk.append(piece)


def test_a_turn_is_told_committed_and_answered_in_openais_order(talk: Talk) -> None:
    talk.append(silence(1))
    speak(talk)
    talk.until("response.done")
    kinds = [kind for kind in talk.kinds if not kind.endswith(".delta")]
    assert kinds[1:8] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
    ]
    started, stopped, committed = talk.events[1:4]
    assert started["item_id"] == stopped["item_id"] == committed["item_id"]
    assert started["audio_start_ms"] == pytest.approx(1000 - 300, abs=64)
    assert stopped["audio_end_ms"] == pytest.approx(1000 + 500 + 500, abs=64)
    talk.order.end()


def test_the_item_is_the_speech_with_its_padding_and_its_silence(talk: Talk) -> None:
    detect(talk, silence_duration_ms=200, prefix_padding_ms=100, create_response=False)
    talk.append(silence(1))
    speak(talk)
    item = talk.until("conversation.item.done")["item"]
    talk.say("conversation.item.retrieve", item_id=item["id"])
    (part,) = talk.until("conversation.item.retrieved")["item"]["content"]
    ms = len(part["audio"]) * 3 / 4 / 48
    assert ms == pytest.approx(100 + 500 + 200, abs=96)
    assert talk.is_quiet()


def test_turns_follow_each_other(talk: Talk) -> None:
    detect(talk, silence_duration_ms=200)
    for _ in range(3):
        speak(talk)
        talk.until("response.done")
    assert len(talk.told("input_audio_buffer.speech_started")) == 3
    talk.order.end()


@pytest.mark.parametrize(("eagerness", "waits_ms"), [("high", 300), ("auto", 600), ("low", 1200)])
def test_semantic_turns_wait_as_eagerness_says(talk: Talk, eagerness: str, waits_ms: int) -> None:
    detect(talk, "semantic_vad", eagerness=eagerness)
    speak(talk, 0.5, 1.6)
    stopped = talk.until("input_audio_buffer.speech_stopped")
    assert stopped["audio_end_ms"] == pytest.approx(500 + waits_ms, abs=64)
    talk.until("response.done")


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs onnxruntime")
def test_a_turn_model_ends_a_semantic_turn(tmp_path: Path) -> None:
    """This one takes whatever has sound in it for the end."""
    file = tmp_path / "turns.onnx"
    file.write_bytes(model((1, 80, 800), "ReduceMax", "Sigmoid"))
    with running_gateway(tmp_path, OMNI, turn_model=file) as gateway, talking(gateway) as talk:
        detect(talk, "semantic_vad", eagerness="low")
        talk.append(silence(1))
        speak(talk)
        stopped = talk.until("input_audio_buffer.speech_stopped")
        talk.until("response.done")
    assert stopped["audio_end_ms"] == pytest.approx(1000 + 500 + 224, abs=64)


def test_a_turn_that_is_committed_by_hand_has_the_item_that_was_named(talk: Talk) -> None:
    talk.append(tone(0.5))
    started = talk.until("input_audio_buffer.speech_started")
    talk.say("input_audio_buffer.commit")
    assert talk.until("input_audio_buffer.committed")["item_id"] == started["item_id"]
    talk.until("conversation.item.done")
    assert talk.is_quiet()  # and no answer is made of it


@pytest.mark.parametrize(
    "change",
    [
        {"turn_detection": None},
        {"turn_detection": {"type": "server_vad"}, "format": {"type": "audio/pcmu"}},
    ],
)
def test_a_turn_that_is_detected_no_more_stops_once(talk: Talk, change: Json) -> None:
    detect(talk, "server_vad", create_response=False)
    talk.append(tone(0.5))
    started = talk.until("input_audio_buffer.speech_started")
    talk.update(audio={"input": change})
    stopped = talk.event()
    assert stopped["type"] == "input_audio_buffer.speech_stopped"
    assert stopped["item_id"] == started["item_id"]
    assert stopped["audio_end_ms"] == 500
    # Its audio can be committed by hand, unless another format has dropped it.
    if "format" not in change:
        talk.say("input_audio_buffer.commit")
        assert talk.until("input_audio_buffer.committed")["item_id"] == started["item_id"]
        talk.until("conversation.item.done")
    talk.update(audio={"input": {"turn_detection": {"type": "server_vad"}, "format": PCM}})
    talk.append(tone(0.5))
    talk.until("input_audio_buffer.speech_started")


@pytest.mark.parametrize("detection", [{"threshold": 0.4}, {"type": "semantic_vad"}])
def test_a_turn_goes_on_with_other_settings_of_its_detection(talk: Talk, detection: Json) -> None:
    detect(talk, "server_vad", create_response=False)
    talk.append(tone(0.5))
    talk.until("input_audio_buffer.speech_started")
    talk.update(audio={"input": {"turn_detection": detection}})
    talk.append(silence(2))
    assert talk.event()["type"] == "input_audio_buffer.speech_stopped"
    talk.until("conversation.item.done")


def test_without_detection_nothing_is_a_turn(talk: Talk) -> None:
    talk.update(audio={"input": {"turn_detection": None}})
    speak(talk)
    assert talk.is_quiet()


def test_memory_of_a_silent_microphone_is_bounded(talk: Talk, gateway: RunningGateway) -> None:
    for _ in range(20):
        talk.append(silence(10))
    assert talk.is_quiet()
    talk.say("input_audio_buffer.commit")
    item = talk.until("conversation.item.done")["item"]
    talk.say("conversation.item.retrieve", item_id=item["id"])
    (part,) = talk.until("conversation.item.retrieved")["item"]["content"]
    assert len(part["audio"]) * 3 / 4 / 48_000 <= 0.8 + 0.05
    del gateway


# Speech into an answer


def answering(talk: Talk, script: str = "endless") -> None:
    talk.write(script)
    talk.say("response.create")
    talk.until("response.output_audio.delta")


def test_speech_ends_the_answer_at_once(talk: Talk, gateway: RunningGateway) -> None:
    answering(talk)
    talk.append(tone(0.3))
    talk.until("input_audio_buffer.speech_started")
    num = len(talk.events)
    response = talk.until("response.done")["response"]
    assert [event["type"] for event in talk.events[num:]] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    details = {"type": "cancelled", "reason": "turn_detected"}
    assert (response["status"], response["status_details"]) == ("cancelled", details)
    assert response["output"][0]["status"] == "incomplete"
    gateway.wait_until_idle()  # an answer goes on for ever unless it is ended
    assert talk.is_quiet()


def test_the_words_of_an_interrupted_answer_are_those_that_were_sent(
    talk: Talk, gateway: RunningGateway
) -> None:
    answering(talk)
    talk.append(np.concatenate([tone(0.3), silence(0.8)]))
    response = talk.until("response.done")["response"]
    told = talk.told("response.output_audio_transcript.delta")
    words = "".join(one["delta"] for one in told)
    (item,) = response["output"]
    assert item["content"][0]["transcript"] == words
    place = {"item_id": item["id"], "content_index": 0, "audio_end_ms": 10}
    talk.say("conversation.item.truncate", **place)
    talk.until("conversation.item.truncated")
    while len(talk.told("response.done")) < 2:
        talk.event()
    messages = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)["messages"]
    said = [one for one in messages if one["role"] == "assistant"]
    assert all(words.startswith(one["content"][0]["text"]) for one in said)


@pytest.mark.parametrize("cut_ms", range(0, 1001, 100))
def test_an_answer_that_is_cut_anywhere_leaves_a_prefix_of_what_was_sent(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, cut_ms: int
) -> None:
    """By somebody who speaks once so much was sent, and says how much of it was played."""
    words: list[Any] = [({"content": f"word{number} "}, {}) for number in range(30)]
    monkeypatch.setitem(fake_stages.SCRIPTS, "endless", lambda: words)
    talk.write("endless")
    talk.say("response.create")
    sent_ms = 0.0
    while sent_ms <= cut_ms:
        sent_ms += len(talk.until("response.output_audio.delta")["delta"]) * 3 / 4 / 48
    talk.append(tone(0.3))
    talk.until("input_audio_buffer.speech_started")
    (item,) = talk.until("response.done")["response"]["output"]
    told = talk.told("response.output_audio_transcript.delta")
    said = "".join(event["delta"] for event in told)
    assert item["content"][0]["transcript"] == said
    place = {"item_id": item["id"], "content_index": 0, "audio_end_ms": cut_ms}
    talk.say("conversation.item.truncate", **place)
    talk.until("conversation.item.truncated")
    talk.say("conversation.item.retrieve", item_id=item["id"])
    heard = talk.until("conversation.item.retrieved")["item"]["content"][0]["transcript"]
    assert said.startswith(heard)
    assert heard == "" if cut_ms == 0 else not heard.endswith(" ")
    assert set(heard.split()) <= set(said.split())  # no part of a word
    talk.say("input_audio_buffer.clear")
    talk.until("input_audio_buffer.cleared")
    talk.write("And now?")
    assert talk.answer()["status"] == "completed"
    messages = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)["messages"]
    told_now = [one["content"][0]["text"] for one in messages if one["role"] == "assistant"]
    assert told_now == ([heard] if heard else [])


def test_an_answer_that_may_not_be_interrupted_goes_on(talk: Talk) -> None:
    detect(talk, interrupt_response=False, create_response=False)
    answering(talk)
    speak(talk)
    talk.until("input_audio_buffer.committed")
    talk.until("response.output_audio.delta")
    talk.say("response.cancel")
    talk.until("response.done")
    assert talk.is_quiet()


def test_a_turn_within_an_answer_that_goes_on_is_answered_behind_it(
    talk: Talk, gateway: RunningGateway
) -> None:
    detect(talk, interrupt_response=False, silence_duration_ms=200)
    answering(talk)
    speak(talk)
    talk.until("input_audio_buffer.committed")
    talk.say("response.cancel")
    talk.until("response.done")
    second = talk.until("response.done")["response"]
    assert second["status"] == "completed"
    assert len(talk.told("response.created")) == 2
    del gateway


def test_out_of_band_answers_are_not_interrupted(talk: Talk) -> None:
    content = [{"type": "input_text", "text": "endless"}]
    given = [{"type": "message", "role": "user", "content": content}]
    talk.say("response.create", response={"conversation": "none", "input": given})
    response_id = talk.until("response.created")["response"]["id"]
    speak(talk)
    talk.until("input_audio_buffer.committed")
    while talk.until("response.done")["response"]["id"] == response_id:
        raise AssertionError("it was interrupted")
    talk.say("response.cancel", response_id=response_id)
    assert talk.until("response.done")["response"]["id"] == response_id


# Silence


def test_a_silent_user_is_answered_after_the_answer_was_played(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_idle(monkeypatch)
    detect(talk, idle_timeout_ms=5000)
    talk.write("Hello")
    talk.append(silence(0.2))
    began = time.monotonic()
    talk.answer()
    triggered = talk.until("input_audio_buffer.timeout_triggered")
    assert time.monotonic() - began > 0.25
    assert triggered["audio_end_ms"] == 200
    committed = talk.until("input_audio_buffer.committed")
    assert committed["item_id"] == triggered["item_id"]
    assert talk.until("response.done")["response"]["status"] == "completed"


def shorten_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the time: the field allows no less than 5 s."""
    monkeypatch.setattr(listener, "MS", 20_000)


def test_silence_counts_from_where_a_client_stopped_playing(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece of audio is an hour long, which is three minutes here."""
    shorten_idle(monkeypatch)
    monkeypatch.setattr(response, "UserAudio", lambda *_: SimpleNamespace(ms=3_600_000.0))
    detect(talk, idle_timeout_ms=5000)
    talk.write("Hello")
    item_id = talk.answer()["output"][0]["id"]
    place = {"item_id": item_id, "content_index": 0, "audio_end_ms": 0}
    talk.say("conversation.item.truncate", **place)
    talk.until("input_audio_buffer.timeout_triggered")


def test_speech_and_updates_end_the_wait(talk: Talk, gateway: RunningGateway) -> None:
    detect(talk, idle_timeout_ms=30_000)
    talk.write("Hello")
    talk.answer()
    detect(talk)
    gateway.pass_over(60)
    detect(talk)  # what the wait would have told came before
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running))


def test_a_client_that_leaves_is_owed_no_answer(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        detect(talk, interrupt_response=False, silence_duration_ms=200)
        answering(talk)
        speak(talk)
        talk.until("input_audio_buffer.committed")
    wait_until(lambda: gateway.do(lambda: gateway.runtime.flights.is_empty))


def test_a_session_that_only_transcribes_now_owes_no_answer(talk: Talk) -> None:
    detect(talk, interrupt_response=False, silence_duration_ms=200)
    answering(talk)
    speak(talk)
    talk.until("input_audio_buffer.committed")
    talk.say("session.update", session={"type": "transcription"})
    talk.until("session.updated")
    talk.say("response.cancel")
    talk.until("response.done")
    assert talk.is_quiet()
