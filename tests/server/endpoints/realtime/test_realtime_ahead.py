"""Answers that are made ahead of the end of a turn: nobody sees them before it.

Speech is told by loudness here, whatever is installed.
"""

import base64
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support import fake_stages
from support.gateway import OMNI, RunningGateway, running_gateway
from support.realtime import Talk, silence, talking, tone
from support.waiting import wait_until

from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.ahead import answer_ahead

pytestmark = pytest.mark.usefixtures("by_loudness")

COUNTS = re.compile(r"^(omnistage_\w+_total)\{(.*)\} (\S+)$", re.MULTILINE)
SPEECH = np.concatenate([silence(0.5), tone(0.4)])
PAUSE = silence(0.25)  # which is 100 ms and less than 500
ENDING = silence(0.5)


@pytest.fixture(autouse=True)
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer waits for the end of its turn however long this machine stands still."""
    monkeypatch.setattr(answer_ahead, "MAX_WAIT_S", 600.0)


@pytest.fixture
def talk(gateway: RunningGateway) -> Iterator[Talk]:
    with talking(gateway) as talk:
        yield talk
        talk.order.end()


def counts(gateway: RunningGateway) -> Counter[str]:
    """What the gateway has counted of requests, by name and labels."""
    page = httpx.get(f"{gateway.url}/metrics").text
    return Counter(
        {
            f"{name}{{{labels}}}": int(float(value))
            for name, labels, value in COUNTS.findall(page)
            if not name.startswith(("omnistage_channel", "omnistage_stage"))
        }
    )


def ahead(counted: Counter[str]) -> dict[str, int]:
    """How many answers were made ahead, by what became of them."""
    name = "omnistage_realtime_ahead_total"
    found = {
        outcome: counted[f'{name}{{outcome="{outcome}"}}']
        for outcome in ("used", "cancelled", "failed")
    }
    return {outcome: count for outcome, count in found.items() if count}


def num_opened(gateway: RunningGateway) -> int:
    """How many requests the thinker got, but for histories that are read ahead."""
    opened = gateway.stages.stages["thinker"].opened
    return gateway.do(lambda: sum(not one.message.keeps_rows for one in opened))


def pause(talk: Talk, gateway: RunningGateway) -> None:
    """Speak and pause; an answer is under way then."""
    before = num_opened(gateway)
    talk.append(SPEECH)
    talk.append(PAUSE)
    talk.until("input_audio_buffer.speech_started")
    wait_until(lambda: num_opened(gateway) == before + 1)


def turn_of(gateway: RunningGateway) -> tuple[list[str], str, str]:
    """The events of one spoken turn but for deltas, and the words and the audio of those."""
    with talking(gateway) as talk:
        for piece in (SPEECH, PAUSE, ENDING):
            talk.append(piece)
        talk.until("response.done")
        assert talk.is_quiet()
        talk.order.end()
    words = "".join(one["delta"] for one in talk.told("response.output_audio_transcript.delta"))
    audio = b"".join(
        base64.b64decode(one["delta"]) for one in talk.told("response.output_audio.delta")
    )
    return [kind for kind in talk.kinds if not kind.endswith(".delta")], words, audio.hex()


def test_a_turn_is_the_same_as_without(gateway: RunningGateway, tmp_path: Path) -> None:
    before = counts(gateway)
    made_ahead = turn_of(gateway)
    assert ahead(counts(gateway) - before) == {"used": 1}
    with running_gateway(tmp_path, OMNI, sessions=SessionBounds(answer_ahead=0)) as other:
        assert turn_of(other) == made_ahead
        assert ahead(counts(other)) == {}
    assert made_ahead[1] == "Hello there"


def test_nothing_is_seen_of_it_before_the_turn_has_ended(
    talk: Talk, gateway: RunningGateway
) -> None:
    before = counts(gateway)
    pause(talk, gateway)
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running))  # it is whole
    assert talk.is_quiet(0.3)
    assert counts(gateway) == before
    item_id = talk.events[-1]["item_id"]
    talk.say("conversation.item.retrieve", item_id=item_id)
    assert talk.event()["error"]["code"] == "item_retrieve_invalid_item_id"
    talk.append(ENDING)
    response = talk.until("response.done")["response"]
    assert response["usage"]["total_tokens"] > 0
    wait_until(lambda: ahead(counts(gateway) - before) == {"used": 1})
    made = counts(gateway) - before
    assert made['omnistage_answers_total{modality="text+audio",outcome="finished"}'] == 1
    assert sum(n for name, n in made.items() if name.startswith("omnistage_requests_total")) == 1


def test_it_is_told_at_once_when_the_turn_ends(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "wait")
    pause(talk, gateway)
    gateway.wait_until_waiting()
    gateway.go_on()
    wait_until(lambda: not gateway.do(lambda: gateway.stages.running))
    begun = num_opened(gateway)
    talk.append(ENDING)
    talk.until("input_audio_buffer.speech_stopped")
    talk.until("response.output_audio.delta")
    talk.until("response.done")
    assert num_opened(gateway) == begun


def test_speech_that_goes_on_cancels_it(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "endless")
    before = counts(gateway)
    pause(talk, gateway)
    monkeypatch.undo()
    talk.append(tone(0.3))
    gateway.wait_until_idle()
    assert talk.is_quiet()
    made = counts(gateway) - before
    assert made == {'omnistage_realtime_ahead_total{outcome="cancelled"}': 1}
    assert "response.created" not in talk.kinds


def test_what_is_answered_then_is_all_that_was_said(talk: Talk, gateway: RunningGateway) -> None:
    pause(talk, gateway)
    talk.append(tone(0.4))
    talk.append(PAUSE)
    talk.append(ENDING)
    talk.until("response.done")
    (committed,) = talk.told("input_audio_buffer.committed")
    talk.say("conversation.item.retrieve", item_id=committed["item_id"])
    (part,) = talk.until("conversation.item.retrieved")["item"]["content"]
    ms = len(part["audio"]) * 3 / 4 / 48
    assert ms == pytest.approx(300 + 400 + 250 + 400 + 128, abs=100)
    assert len(talk.told("response.created")) == 1


def pause_often(talk: Talk) -> None:
    """Pause four times in a turn, each time for longer, then end it."""
    talk.append(SPEECH)
    for seconds in (0.2, 0.27, 0.34, 0.41):
        talk.append(silence(seconds))
        talk.append(tone(0.2))
    talk.append(PAUSE)
    talk.append(ENDING)
    talk.until("response.done")


def test_a_turn_has_at_most_two_in_a_short_time(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_ahead, "MORE_PER_S", 0.0)
    before = counts(gateway)
    pause_often(talk)
    assert ahead(counts(gateway) - before) == {"cancelled": 2}


def test_a_long_turn_has_more_of_them_as_time_goes(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_ahead, "MORE_PER_S", 1e9)
    before = counts(gateway)
    pause_often(talk)
    assert ahead(counts(gateway) - before) == {"cancelled": 4, "used": 1}


def test_pauses_that_are_no_longer_than_one_before_use_none_up(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_ahead, "MORE_PER_S", 0.0)
    before = counts(gateway)
    talk.append(SPEECH)
    for seconds in (0.4, 0.25, 0.25, 0.25, 0.25):
        talk.append(silence(seconds))
        talk.append(tone(0.2))
    talk.append(PAUSE)
    talk.append(ENDING)
    talk.until("response.done")
    assert ahead(counts(gateway) - before) == {"cancelled": 1, "used": 1}


def test_settings_that_change_meanwhile_count(talk: Talk, gateway: RunningGateway) -> None:
    before = counts(gateway)
    pause(talk, gateway)
    talk.update(instructions="Be rude.", output_modalities=["text"])
    talk.append(ENDING)
    response = talk.until("response.done")["response"]
    assert response["output_modalities"] == ["text"]
    messages = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)["messages"]
    assert messages[0] == {"role": "system", "content": "Be rude."}
    assert ahead(counts(gateway) - before) == {"cancelled": 1}


@pytest.mark.parametrize("change", ["create", "delete", "truncate"])
def test_items_that_change_meanwhile_count(
    talk: Talk, gateway: RunningGateway, change: str
) -> None:
    item = talk.write("first")
    (answer,) = talk.answer()["output"]
    before = counts(gateway)
    pause(talk, gateway)
    if change == "create":
        talk.write("second")
    elif change == "delete":
        talk.say("conversation.item.delete", item_id=item["id"])
    else:
        place = {"item_id": answer["id"], "content_index": 0, "audio_end_ms": 0}
        talk.say("conversation.item.truncate", **place)
    talk.append(ENDING)
    talk.until("response.done")
    messages = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)["messages"]
    num = {"create": 4, "delete": 2, "truncate": 2}[change]
    assert sum(len(one["content"]) if one["role"] == "user" else 1 for one in messages) == num
    assert ahead(counts(gateway) - before) == {"cancelled": 1}


@pytest.mark.parametrize(
    "detection",
    [
        {"create_response": False},
        {"silence_duration_ms": 100},
        {"type": "semantic_vad", "create_response": False},
    ],
)
def test_it_is_made_only_where_a_response_is(
    talk: Talk, gateway: RunningGateway, detection: dict[str, Any]
) -> None:
    talk.update(audio={"input": {"turn_detection": {"type": "server_vad", **detection}}})
    before = counts(gateway)
    for piece in (SPEECH, PAUSE, tone(0.2), PAUSE, ENDING):
        talk.append(piece)
    talk.until("conversation.item.done")
    assert ahead(counts(gateway) - before) == {}


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
