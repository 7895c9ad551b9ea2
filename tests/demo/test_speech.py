"""Speech from a text, and text from speech."""

from pathlib import Path

import openai
import pytest
from support.fakes.stages import FRAMES, SAMPLES_PER_FRAME
from support.gateway.serving import MODEL, OMNI, TEXT_ONLY, running_gateway

from omnistage.demo.backend import Backend
from omnistage.demo.examples import spoken_question
from omnistage.demo.failure import plain
from omnistage.demo.files import FileStore
from omnistage.demo.sound import LatestSounds
from omnistage.demo.speech import (
    SpeechProgress,
    SpeechSettings,
    speak,
    speech_request,
    transcribe,
    translate,
)


async def test_a_text_is_spoken_piece_by_piece(tmp_path: Path) -> None:
    spoken = SpeechProgress(LatestSounds().open())
    with running_gateway(tmp_path, OMNI) as gateway:
        async with Backend.connect(gateway.url, None, FileStore(tmp_path)).client as client:
            settings = SpeechSettings(MODEL, "words", "ethan")
            async for _ in speak(client, settings, spoken):
                pass
    assert len(spoken.sound.samples) == 2 * sum(FRAMES) * SAMPLES_PER_FRAME
    assert spoken.timing.rtf is not None
    assert [piece async for piece in spoken.sound.read()] == [spoken.sound.samples]


async def test_a_server_that_does_not_speak_is_told_in_its_words(tmp_path: Path) -> None:
    spoken = SpeechProgress(LatestSounds().open())
    with running_gateway(tmp_path, TEXT_ONLY) as gateway:
        async with Backend.connect(gateway.url, None, FileStore(tmp_path)).client as client:
            with pytest.raises(openai.BadRequestError) as raised:
                await anext(speak(client, SpeechSettings(MODEL, "words", "ethan"), spoken))
    assert plain(raised.value, "") == raised.value.body["message"]  # type: ignore[index]
    assert [piece async for piece in spoken.sound.read()] == []


def test_what_was_chosen_is_sent() -> None:
    plainly = speech_request(SpeechSettings("m", "words", "ethan"))
    assert "instructions" not in plainly
    chosen = speech_request(SpeechSettings("m", "words", "ethan", 1.5, "whisper"))
    assert (chosen["speed"], chosen["instructions"]) == (1.5, "whisper")


def sound(folder: Path) -> Path:
    path = folder / "question.mp3"
    path.write_bytes(spoken_question())
    return path


async def test_a_sound_is_written_down_while_it_is_understood(tmp_path: Path) -> None:
    texts = []
    with running_gateway(tmp_path, OMNI) as gateway:
        async with Backend.connect(gateway.url, None, FileStore(tmp_path)).client as client:
            async for told in transcribe(client, MODEL, sound(tmp_path), "en"):
                texts.append(told.text)
    assert texts[0] == "Hel"
    assert texts[-1] == "Hello there"
    assert told.timing.first_text_s is not None


async def test_a_sound_is_translated(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        async with Backend.connect(gateway.url, None, FileStore(tmp_path)).client as client:
            told = await translate(client, MODEL, sound(tmp_path))
    assert told.text == "Hello there"
    assert told.timing.ended_s is not None
