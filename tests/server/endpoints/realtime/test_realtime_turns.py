"""Turns that the server detects, and what happens when somebody speaks into an answer.

Speech is told by loudness here, whatever is installed.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.models.onnx_files import model
from support.realtime.client import Talk, silence, talking, tone
from support.realtime.turns import detect, speak

Json = dict[str, Any]
PCM = {"type": "audio/pcm", "rate": 24_000}
pytestmark = pytest.mark.usefixtures("by_loudness")


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
