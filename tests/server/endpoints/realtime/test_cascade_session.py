"""Sessions over a transcriber, a text model and a speech model that no edge joins."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.fakes.stages import SAMPLES_PER_FRAME
from support.gateway.cascade import CASCADE
from support.gateway.serving import RunningGateway, running_gateway
from support.realtime.cascade_talk import TEXT, asked_of, speak
from support.realtime.client import Talk, talking, tone
from support.waiting import wait_until

from omnistage.stages.messages.body import GivenText
from omnistage.stages.messages.to_gateway import Speech

DELTA = "response.output_audio.delta"
pytestmark = pytest.mark.usefixtures("by_loudness")


@pytest.fixture(scope="module")
def gateway(cascade: RunningGateway) -> RunningGateway:
    return cascade


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: RunningGateway) -> Iterator[None]:
    yield
    gateway.wait_until_idle()


def test_a_turn_is_transcribed_answered_and_spoken(gateway: RunningGateway, talk: Talk) -> None:
    talk.update(
        instructions="Be short.",
        audio={
            "input": {"transcription": {"model": "whisper-1", "language": "en"}},
            "output": {"voice": "chelsie"},
        },
    )
    speak(talk)
    response = talk.until("response.done")["response"]
    assert response["status"] == "completed"
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": TEXT}]
    assert talk.told("response.output_audio.delta")
    (heard,) = talk.told("conversation.item.input_audio_transcription.completed")
    assert heard["transcript"].startswith("I speak for")
    assert asked_of(gateway).language == "en"
    stages = gateway.stages.stages
    assert stages["thinker"].last_body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": heard["transcript"]}]},
    ]
    spoken = stages["talker"].last_request
    assert (spoken.speaker, spoken.path) == ("chelsie", ["talker", "code2wav"])
    assert isinstance(spoken.body, GivenText)
    words = [spoken.body.text, *gateway.stages.texts[stages["talker"].opened[-1].request_id]]
    assert "".join(words) == TEXT
    assert response["usage"]["output_token_details"]["audio_tokens"] > 0
    kinds = talk.kinds
    told = kinds.index("conversation.item.input_audio_transcription.completed")
    assert told < kinds.index("response.output_item.added")  # the answer is to these words


def test_a_turn_is_transcribed_once_and_only_told_of_if_asked(
    gateway: RunningGateway, talk: Talk
) -> None:
    before = len(gateway.stages.stages["transcriber"].opened)
    speak(talk)
    assert talk.until("response.done")["response"]["status"] == "completed"
    assert not [kind for kind in talk.kinds if "transcription" in kind]
    speak(talk)
    talk.until("response.done")
    assert len(gateway.stages.stages["transcriber"].opened) == before + 2
    user = gateway.stages.stages["thinker"].last_body["messages"]
    assert [one["role"] for one in user] == ["user", "assistant", "user"]


def test_the_text_model_never_gets_audio(gateway: RunningGateway, talk: Talk) -> None:
    """Neither for an answer nor ahead of one, when the history has changed."""
    thinker = gateway.stages.stages["thinker"]
    speak(talk)
    talk.until("response.done")
    before = len(thinker.opened)
    talk.update(instructions="Be kind.")
    assert talk.is_quiet(0.3)
    assert len(thinker.opened) == before
    for chunk in thinker.opened:
        assert "audio" not in str(chunk.message.fields["messages"])


def test_audio_of_an_item_and_out_of_band_is_answered_in_words(
    gateway: RunningGateway, talk: Talk
) -> None:
    audio = base64.b64encode(tone(0.5).astype("<i2").tobytes()).decode()
    content = [{"type": "input_audio", "audio": audio}]
    given = {"type": "message", "role": "user", "content": content}
    talk.say("conversation.item.create", item=given)
    talk.until("conversation.item.done")
    assert talk.answer()["status"] == "completed"
    thinker = gateway.stages.stages["thinker"]
    said = [{"type": "text", "text": "I speak for 0.5 s"}]
    assert thinker.last_body["messages"][0]["content"] == said
    content[0]["transcript"] = "I said so."
    talk.answer(conversation="none", input=[given])
    said = [{"type": "text", "text": "I said so."}]
    assert thinker.last_body["messages"] == [{"role": "user", "content": said}]


def test_a_call_of_a_function_is_not_spoken(gateway: RunningGateway, talk: Talk) -> None:
    num_spoken = len(gateway.stages.stages["talker"].opened)
    talk.write("tool")
    response = talk.answer()
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("function_call", "look")
    assert len(gateway.stages.stages["talker"].opened) == num_spoken


@pytest.mark.parametrize(
    ("max_text", "parts"),
    [
        (400, ["Hello there"]),
        (12, ["Hello there"]),
        (8, ["Hello", " there"]),
        (6, ["Hello", " there"]),
    ],
)
def test_a_long_answer_is_spoken_in_parts_that_the_model_takes(
    max_text: int, parts: list[str], tmp_path: Path
) -> None:
    speech = Speech(takes_pieces=True, max_text=max_text)
    with running_gateway(tmp_path, CASCADE, speech=speech) as gateway, talking(gateway) as talk:
        talk.write("Hi")
        response = talk.answer()
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["transcript"] == TEXT
        opened = gateway.stages.stages["talker"].opened
        words = [chunk.message.body.text for chunk in opened]  # type: ignore[union-attr]
        rest = ["".join(gateway.stages.texts[chunk.request_id]) for chunk in opened]
        assert [one + more for one, more in zip(words, rest, strict=True)] == parts
        pcm = b"".join(base64.b64decode(one["delta"]) for one in talk.told(DELTA))
        frames = response["usage"]["output_token_details"]["audio_tokens"]
        assert len(pcm) == 2 * SAMPLES_PER_FRAME * frames > 0
        gateway.wait_until_idle()


def test_an_answer_in_text_is_not_spoken(gateway: RunningGateway, talk: Talk) -> None:
    num_spoken = len(gateway.stages.stages["talker"].opened)
    talk.update(output_modalities=["text"])
    talk.write("Hi")
    (item,) = talk.answer()["output"]
    assert item["content"] == [{"type": "output_text", "text": TEXT}]
    assert len(gateway.stages.stages["talker"].opened) == num_spoken


@pytest.mark.parametrize("stage", ["transcriber", "thinker", "code2wav"])
def test_speaking_into_an_answer_ends_all_of_its_requests(
    stage: str, gateway: RunningGateway, talk: Talk
) -> None:
    """Wherever the answer is: it hangs in the transcriber, in the text or in the speech."""
    if stage == "transcriber":
        talk.update(audio={"input": {"transcription": {"model": "x", "prompt": "hang"}}})
        speak(talk)
        talk.until("response.created")
    else:
        talk.write({"thinker": "hang", "code2wav": "pause"}[stage])
        talk.say("response.create")
        talk.until("response.created" if stage == "thinker" else "response.output_audio.delta")
    wait_until(lambda: gateway.do(lambda: bool(gateway.stages.stages[stage].tasks)))
    for piece in np.split(tone(0.5), 25):
        talk.append(piece)
    talk.until("input_audio_buffer.speech_started")
    done = talk.until("response.done")["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"]["reason"] == "turn_detected"
    after = talk.kinds[talk.kinds.index("input_audio_buffer.speech_started", 1) :]
    assert stage == "transcriber" or not [kind for kind in after if kind.endswith(".delta")]
    if stage != "transcriber":  # a transcript of what was said is made whatever follows
        gateway.wait_until_idle()
    talk.say("input_audio_buffer.clear")
    talk.until("input_audio_buffer.cleared")


def test_a_transcript_that_fails_fails_the_answer_and_the_session_goes_on(
    gateway: RunningGateway, talk: Talk
) -> None:
    talk.update(audio={"input": {"transcription": {"model": "x", "prompt": "refuse"}}})
    speak(talk)
    response = talk.until("response.done")["response"]
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "context_length_exceeded"
    assert talk.told("conversation.item.input_audio_transcription.failed")
    talk.update(audio={"input": {"transcription": None}})
    assert talk.answer()["status"] == "completed"  # it is transcribed again


def test_a_voice_that_the_speech_model_has_not_is_refused_by_its_field(talk: Talk) -> None:
    talk.say("session.update", session={"type": "realtime", "audio": {"output": {"voice": "me"}}})
    error = talk.until("error")["error"]
    assert error["param"] == "session.audio.output.voice"
    assert "chelsie" in error["message"]
