"""A session over its WebSocket: text and audio both ways, items, tools, cancels, refusals.

Every event that `Talk` gets is valid by OpenAI's specification, and in its order.
"""

import base64

import numpy as np
import pytest
from support.fakes.stages import SAMPLES_PER_FRAME
from support.gateway.serving import RunningGateway
from support.realtime.client import Talk, tone
from support.realtime.talk import error_of, last_messages

from omnistage.server.realtime.voice.formats import encoded

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


def sound_of(talk: Talk) -> bytes:
    return b"".join(
        base64.b64decode(one["delta"]) for one in talk.told("response.output_audio.delta")
    )


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
