"""Answers ahead of the end of a turn: without effect beside others, given up, never charged."""

import time
from pathlib import Path

import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.realtime.ahead import ENDING, PAUSE, SPEECH, ahead, counts, num_opened, pause
from support.realtime.client import Talk, talking, tone
from support.waiting import wait_until

from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.ahead import answer_ahead

pytestmark = pytest.mark.usefixtures("by_loudness", "without_haste")


def test_a_session_that_transcribes_makes_none(gateway: RunningGateway) -> None:
    before = counts(gateway)
    with talking(gateway, "?intent=transcription") as talk:
        for piece in (SPEECH, PAUSE, ENDING):
            talk.append(piece)
        talk.until("conversation.item.input_audio_transcription.completed")
    assert ahead(counts(gateway) - before) == {}


def test_calls_of_tools_are_held(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "tool")
    look = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    talk.update(tools=[look])
    pause(talk, gateway)
    assert talk.is_quiet(0.3)
    talk.append(ENDING)
    response = talk.until("response.done")["response"]
    (call,) = response["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "look", '{"at":1}')


def test_answers_out_of_band_go_on_beside_it(talk: Talk, gateway: RunningGateway) -> None:
    before = counts(gateway)
    pause(talk, gateway)
    talk.answer(conversation="none", input=[], output_modalities=["text"])
    talk.append(ENDING)
    talk.until("response.done")
    assert ahead(counts(gateway) - before) == {"used": 1}


def test_an_answer_by_hand_takes_its_place(talk: Talk, gateway: RunningGateway) -> None:
    """And the turn is answered behind that."""
    before = counts(gateway)
    pause(talk, gateway)
    talk.answer()
    talk.append(ENDING)
    talk.until("response.done")
    assert ahead(counts(gateway) - before) == {"cancelled": 1}


@pytest.mark.parametrize("kind", ["input_audio_buffer.clear", "input_audio_buffer.commit"])
def test_a_turn_that_is_ended_by_hand_has_none(
    talk: Talk, gateway: RunningGateway, kind: str
) -> None:
    before = counts(gateway)
    pause(talk, gateway)
    talk.say(kind)
    talk.until(kind.replace("clear", "cleared").replace("commit", "committed"))
    gateway.wait_until_idle()
    assert ahead(counts(gateway) - before) == {"cancelled": 1}
    if kind.endswith("commit"):
        talk.until("conversation.item.done")


def test_it_is_interrupted_as_any_answer(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "endless")
    pause(talk, gateway)
    talk.append(ENDING)
    talk.until("response.output_audio.delta")
    monkeypatch.undo()
    talk.append(tone(0.3))
    talk.until("input_audio_buffer.speech_started")
    num = len(talk.events)
    response = talk.until("response.done")["response"]
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert not [one for one in talk.events[num:] if one["type"].endswith(".delta")]
    gateway.wait_until_idle()


def test_while_an_answer_may_not_be_interrupted_none_is_made(
    talk: Talk, gateway: RunningGateway
) -> None:
    detection = {"type": "server_vad", "interrupt_response": False}
    talk.update(audio={"input": {"turn_detection": detection}})
    talk.write("endless")
    talk.say("response.create")
    talk.until("response.output_audio.delta")
    before, num = counts(gateway), num_opened(gateway)
    talk.append(SPEECH)
    talk.append(PAUSE)
    talk.until("input_audio_buffer.speech_started")
    talk.say("response.cancel")
    talk.until("response.done")
    assert num_opened(gateway) == num
    assert ahead(counts(gateway) - before) == {}


def test_what_it_holds_is_bounded(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages stop at their credit: 4,096 chunks of text are 1 MiB."""
    monkeypatch.setattr("omnistage.server.realtime.ahead.held_chat.MAX_HELD_BYTES", 10 * 256)
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "flood")
    thinker = gateway.stages.stages["thinker"]
    before = gateway.do(lambda: thinker.num_sent)
    pause(talk, gateway)
    wait_until(lambda: gateway.do(lambda: thinker.num_sent) > before + 8)
    time.sleep(0.5)
    assert gateway.do(lambda: thinker.num_sent) < before + 40
    monkeypatch.undo()


def test_an_answer_that_cannot_be_made_is_reported_as_without(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = counts(gateway)
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "refuse")
    pause(talk, gateway)
    talk.append(ENDING)
    response = talk.until("response.done")["response"]
    assert response["status"] == "failed"
    assert "too long" in response["status_details"]["error"]["message"]
    assert ahead(counts(gateway) - before) == {"failed": 1}


def test_one_that_fails_later_fails_the_response(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "fail later")
    pause(talk, gateway)
    talk.append(ENDING)
    response = talk.until("response.done")["response"]
    assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")


def test_one_whose_turn_does_not_end_is_given_up(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_ahead, "MAX_WAIT_S", 0.1)
    before = counts(gateway)
    talk.append(SPEECH)
    talk.append(PAUSE)
    wait_until(lambda: ahead(counts(gateway) - before) == {"cancelled": 1})
    gateway.wait_until_idle()
    talk.append(ENDING)
    assert talk.until("response.done")["response"]["status"] == "completed"


def test_a_client_that_leaves_frees_its_stages(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "endless")
    with talking(gateway) as talk:
        pause(talk, gateway)


def test_a_server_that_stops_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "endless")
    with running_gateway(tmp_path, OMNI) as gateway, talking(gateway) as talk:
        pause(talk, gateway)
        gateway.stop()
        gateway.wait_until_idle()


def test_a_busy_server_makes_none(tmp_path: Path) -> None:
    bounds = SessionBounds(answer_ahead=1)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        talk.write("endless")
        talk.say("response.create", response={"conversation": "none"})
        talk.until("response.output_audio.delta")
        before = counts(gateway)
        for piece in (SPEECH, PAUSE, ENDING):
            talk.append(piece)
        talk.until("conversation.item.done")
        assert ahead(counts(gateway) - before) == {}
        talk.until("response.done")


def test_only_what_is_told_is_charged(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, requests_per_minute=1) as gateway:
        with talking(gateway) as talk:
            pause(talk, gateway)
            talk.append(tone(0.3))
            pause_again = (PAUSE, ENDING)
            for piece in pause_again:
                talk.append(piece)
            assert talk.until("response.done")["response"]["status"] == "completed"
            pause(talk, gateway)
            talk.append(ENDING)
            error = talk.until("response.done")["response"]["status_details"]["error"]
        assert error["code"] == "rate_limit_exceeded"
        assert ahead(counts(gateway)) == {"cancelled": 1, "used": 2}
