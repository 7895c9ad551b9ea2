"""Answers that are made ahead of the end of a turn: nobody sees them before it.

Speech is told by loudness here, whatever is installed.
"""

import base64
from pathlib import Path
from typing import Any

import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.realtime.ahead import ENDING, PAUSE, SPEECH, ahead, counts, num_opened, pause
from support.realtime.client import Talk, silence, talking, tone
from support.waiting import wait_until

from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.ahead import answer_ahead

pytestmark = pytest.mark.usefixtures("by_loudness", "without_haste")


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
