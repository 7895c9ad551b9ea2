"""Histories that are read ahead of the next answer: by a request that nobody sees.

Speech is told by loudness here, whatever is installed.
"""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.realtime.client import Talk, silence, talking, tone
from support.waiting import wait_until

from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.ahead import history_ahead
from omnistage.stages.messages.to_stage import Request

pytestmark = pytest.mark.usefixtures("by_loudness")

WAIT_S = 4 * history_ahead.SETTLING_S


def requests(gateway: RunningGateway) -> list[Request]:
    """All that the thinker has got."""
    return gateway.do(lambda: [one.message for one in gateway.stages.stages["thinker"].opened])


class Readings:
    """The requests since it was made."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway
        self._before = len(requests(gateway))

    def all(self) -> list[Request]:
        return requests(self._gateway)[self._before :]

    def one(self) -> Request:
        """The only one, once it has come and others would have."""
        wait_until(lambda: bool(self.all()))
        time.sleep(WAIT_S)
        (request,) = self.all()
        return request


def words_of(request: Request) -> list[str]:
    """The texts of its messages."""
    contents = [one["content"] for one in request.fields["messages"]]
    return [one if isinstance(one, str) else one[0].get("text", "sound") for one in contents]


def test_what_an_update_changes_is_read_for_a_talker(talk: Talk, gateway: RunningGateway) -> None:
    readings, page = Readings(gateway), answers_counted(gateway)
    talk.update(instructions="Be kind.")
    request = readings.one()
    assert request.outputs == ["text"]
    assert request.keeps_rows
    assert request.fields["max_completion_tokens"] == 1
    assert words_of(request) == ["Be kind."]
    gateway.wait_until_idle()
    assert talk.is_quiet()
    assert answers_counted(gateway) == page


def answers_counted(gateway: RunningGateway) -> list[str]:
    page = httpx.get(f"{gateway.url}/metrics").text.splitlines()
    names = ("omnistage_answers_total", "omnistage_requests_total", "omnistage_prompt_tokens")
    return [line for line in page if line.startswith(names)]


def test_without_speech_no_rows_are_kept(talk: Talk, gateway: RunningGateway) -> None:
    readings = Readings(gateway)
    talk.update(instructions="Be kind.", output_modalities=["text"])
    assert not readings.one().keeps_rows


def test_an_empty_session_reads_nothing(talk: Talk, gateway: RunningGateway) -> None:
    readings = Readings(gateway)
    talk.update(audio={"output": {"speed": 1.5}})
    time.sleep(WAIT_S)
    assert not readings.all()


def test_many_items_are_read_once(
    talk: Talk, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = Readings(gateway)
    with monkeypatch.context() as patch:
        patch.setattr(history_ahead, "SETTLING_S", 600.0)  # the next comes within it
        for number in range(9):
            talk.write(f"item {number}")
    talk.write("item 9")
    assert words_of(readings.one()) == [f"item {number}" for number in range(10)]


def test_a_deleted_item_is_read_no_more(talk: Talk, gateway: RunningGateway) -> None:
    readings = Readings(gateway)
    talk.write("first")
    item = talk.write("second")
    wait_until(lambda: "second" in words_of(readings.all()[-1]) if readings.all() else False)
    gateway.wait_until_idle()
    readings = Readings(gateway)
    talk.say("conversation.item.delete", item_id=item["id"])
    assert words_of(readings.one()) == ["first"]


def test_an_answer_that_was_cut_is_read_as_it_was_heard(
    talk: Talk, gateway: RunningGateway
) -> None:
    talk.write("hello")
    (item,) = talk.answer()["output"]
    readings = Readings(gateway)
    place = {"item_id": item["id"], "content_index": 0, "audio_end_ms": 60}
    talk.say("conversation.item.truncate", **place)
    assert words_of(readings.one()) == ["hello", "Hello"]


def test_an_interrupted_answer_is_read_while_the_user_speaks(
    talk: Talk, gateway: RunningGateway
) -> None:
    talk.write("endless")
    talk.say("response.create")
    talk.until("response.output_audio.delta")
    readings = Readings(gateway)
    talk.append(tone(0.3))
    talk.until("response.done")
    assert words_of(readings.one())[0] == "endless"
    assert talk.is_quiet()


def test_what_an_answer_has_read_is_not_read_again(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("hello")
    talk.answer()
    readings = Readings(gateway)
    talk.append(tone(0.3))
    talk.until("input_audio_buffer.speech_started")
    time.sleep(WAIT_S)
    assert not readings.all()


def test_what_a_failed_answer_has_not_read_is_read(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("refuse")
    talk.answer()
    readings = Readings(gateway)
    talk.append(tone(0.3))
    assert words_of(readings.one()) == ["refuse"]


def test_an_answer_ends_the_reading(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("hang")
    wait_until(lambda: len(gateway.do(lambda: gateway.stages.running)) == 1)
    talk.write("hello")
    talk.answer()
    gateway.wait_until_idle()


def test_items_that_nobody_answers_yet_are_read(talk: Talk, gateway: RunningGateway) -> None:
    """As Open WebUI's, which waits for the transcript."""
    detection = {"type": "server_vad", "create_response": False}
    talk.update(audio={"input": {"turn_detection": detection}})
    readings = Readings(gateway)
    for piece in (silence(0.4), tone(0.4), silence(0.8)):
        talk.append(piece)
    assert words_of(readings.one()) == ["sound"]


def test_a_client_that_leaves_ends_the_reading(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_stages, "text_of", lambda _: "hang")
    with talking(gateway) as talk:
        talk.update(instructions="Be kind.")
        wait_until(lambda: bool(gateway.do(lambda: gateway.stages.running)))


def test_a_refused_history_is_not_reported(talk: Talk, gateway: RunningGateway) -> None:
    readings = Readings(gateway)
    talk.write("refuse")
    readings.one()
    assert talk.is_quiet()


@pytest.mark.parametrize("most", [0, 1])
def test_it_is_off_or_above_a_load(tmp_path: Path, most: int) -> None:
    bounds: Any = SessionBounds(history_ahead=most)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        if most:
            talk.say(
                "response.create",
                response={
                    "conversation": "none",
                    "input": [
                        {
                            "type": "message",
                            "role": "user",
                            "content": [{"type": "input_text", "text": "endless"}],
                        }
                    ],
                },
            )
            talk.until("response.output_audio.delta")
        readings = Readings(gateway)
        talk.say("session.update", session={"type": "realtime", "instructions": "Be kind."})
        talk.until("session.updated")
        time.sleep(WAIT_S)
        assert not readings.all()
