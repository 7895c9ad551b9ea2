"""What the user said, transcribed beside the answers, and sessions that only transcribe."""

from typing import Any

import numpy as np
import pytest
from support.gateway.serving import RunningGateway
from support.realtime.client import Talk, silence, talking, tone

from omnistage.server.realtime import transcripts

EVENT = "conversation.item.input_audio_transcription"
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("by_loudness")


def transcribe(talk: Talk, detection: Any = None, **transcription: Any) -> None:
    transcription = {"model": "whisper-1", **transcription}
    talk.update(audio={"input": {"transcription": transcription, "turn_detection": detection}})


def commit(talk: Talk) -> str:
    talk.append(tone(0.3))
    talk.say("input_audio_buffer.commit")
    return str(talk.until("conversation.item.done")["item"]["id"])


def test_what_is_committed_is_transcribed_at_once(talk: Talk, gateway: RunningGateway) -> None:
    transcribe(talk, language="de")
    item_id = commit(talk)
    done = talk.until(f"{EVENT}.completed")
    assert (done["item_id"], done["content_index"], done["transcript"]) == (
        item_id,
        0,
        "Hello there",
    )
    usage = {"type": "tokens", "input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    assert done["usage"] == {
        **usage,
        "input_token_details": {"text_tokens": 5, "audio_tokens": 0},
    }
    deltas = [one["delta"] for one in talk.told(f"{EVENT}.delta")]
    assert deltas == ["Hel", "lo", " there"]
    messages = gateway.do(lambda: gateway.stages.stages["thinker"].last_body)["messages"]
    assert "The language of the audio is de." in messages[0]["content"][1]["text"]
    talk.say("conversation.item.retrieve", item_id=item_id)
    (part,) = talk.until("conversation.item.retrieved")["item"]["content"]
    assert part["transcript"] == "Hello there"


def test_without_transcription_nothing_is_transcribed(talk: Talk) -> None:
    talk.update(audio={"input": {"turn_detection": None}})
    commit(talk)
    assert talk.is_quiet()


def test_an_answered_turn_is_transcribed_once_its_answer_is_heard(talk: Talk) -> None:
    transcribe(talk, {"type": "server_vad", "silence_duration_ms": 200})
    talk.append(np.concatenate([tone(0.5), silence(0.6)]))
    talk.until(f"{EVENT}.completed")
    kinds = talk.kinds
    first_sound = kinds.index("response.output_audio.delta")
    assert first_sound < kinds.index(f"{EVENT}.delta")
    while not talk.told("response.done"):
        talk.event()


def test_a_turn_that_is_not_answered_is_transcribed_at_once(talk: Talk) -> None:
    """As Open WebUI wants it: it creates the response when it has the words."""
    detection = {"type": "server_vad", "silence_duration_ms": 200, "create_response": False}
    transcribe(talk, detection)
    talk.append(np.concatenate([tone(0.5), silence(0.6)]))
    assert talk.until(f"{EVENT}.completed")["transcript"] == "Hello there"
    assert talk.answer()["status"] == "completed"


def test_an_interrupted_answer_does_not_keep_a_transcript_waiting(talk: Talk) -> None:
    detection = {"type": "server_vad", "silence_duration_ms": 200}
    transcribe(talk, detection)
    talk.update(instructions="x")
    talk.append(np.concatenate([tone(0.5), silence(0.3), tone(0.5), silence(0.3)]))
    talk.until(f"{EVENT}.completed")
    while len(talk.told(f"{EVENT}.completed")) < 2 or talk.order.responses:
        talk.event()


@pytest.mark.parametrize(("prompt", "said"), [("silent", ""), ("think", "Hello there")])
def test_no_words_are_an_empty_transcript(talk: Talk, prompt: str, said: str) -> None:
    """The fake thinker answers by the last words of the question, which are the prompt."""
    transcribe(talk, prompt=prompt)
    commit(talk)
    assert talk.until(f"{EVENT}.completed")["transcript"] == said


@pytest.mark.parametrize("prompt", ["refuse", "fail later", "cut"])
def test_a_transcript_that_fails_is_told_of_its_item(talk: Talk, prompt: str) -> None:
    transcribe(talk, prompt=prompt)
    item_id = commit(talk)
    failed = talk.until(f"{EVENT}.failed")
    assert (failed["item_id"], failed["error"]["code"]) == (item_id, "context_length_exceeded")
    assert talk.answer()["status"] == "completed"


def test_too_many_that_wait_fail(talk: Talk) -> None:
    transcribe(talk, prompt="hang")
    for _ in range(transcripts.MAX_WAITING + 2):
        last = commit(talk)
    failed = talk.until(f"{EVENT}.failed")
    assert (failed["item_id"], failed["error"]["code"]) == (last, "too_many_transcripts")


def test_log_probabilities_come_where_they_are_included(talk: Talk) -> None:
    talk.update(include=["item.input_audio_transcription.logprobs"])
    transcribe(talk)
    commit(talk)
    done = talk.until(f"{EVENT}.completed")
    assert [one["token"] for one in done["logprobs"]] == ["Hel", "lo", " there"]


def test_a_deleted_item_is_told_of_no_more(talk: Talk, gateway: RunningGateway) -> None:
    transcribe(talk, prompt="wait")
    item_id = commit(talk)
    gateway.wait_until_waiting()
    talk.say("conversation.item.delete", item_id=item_id)
    talk.until("conversation.item.deleted")
    gateway.go_on()
    gateway.wait_until_idle()
    talk.update()  # what would be told of it came before the answer to this
    assert talk.kinds[-2:] == ["conversation.item.deleted", "session.updated"]


# Sessions that only transcribe


@pytest.mark.parametrize("query", ["?intent=transcription", ""])
def test_a_transcription_session_makes_no_answers(gateway: RunningGateway, query: str) -> None:
    with talking(gateway, query) as talk:
        detection = {"type": "server_vad", "silence_duration_ms": 200}
        session = {"type": "transcription", "audio": {"input": {"turn_detection": detection}}}
        talk.say("session.update", session=session)
        told = talk.until("session.updated")["session"]
        assert (told["type"], set(told["audio"])) == ("transcription", {"input"})
        talk.append(np.concatenate([tone(0.5), silence(0.6)]))
        assert talk.until(f"{EVENT}.completed")["transcript"] == "Hello there"
        assert talk.is_quiet()
        talk.say("response.create", event_id="mine")
        error = talk.until("error")["error"]
        assert (error["code"], error["event_id"]) == ("unsupported_parameter", "mine")


def test_betas_transcription_session_is_understood(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        session = {"input_audio_transcription": {"model": "whisper-1"}, "turn_detection": None}
        talk.say("transcription_session.update", session=session)
        assert talk.until("session.updated")["session"]["type"] == "transcription"
        commit(talk)
        assert talk.until(f"{EVENT}.completed")["transcript"] == "Hello there"
