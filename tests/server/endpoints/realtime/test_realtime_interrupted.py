"""Answers into which somebody speaks, and users that say nothing."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import RunningGateway
from support.realtime.client import Talk, silence, talking, tone
from support.realtime.turns import detect, speak
from support.waiting import wait_until

from omnistage.server.realtime import listener
from omnistage.server.realtime.answering import response

pytestmark = pytest.mark.usefixtures("by_loudness")


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
