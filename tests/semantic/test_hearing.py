"""The embedded model hears questions in files of any format, and what it said itself."""

import httpx
import pytest
from ear import words
from support.media.audio import RATE_HZ, samples_of
from support.media.recorded import encoded_sound
from support.media.sounds import wav_of
from support.oracles.meaning import (
    GREEN_SQUARE,
    RED_CIRCLE,
    TIMEOUT_S,
    SmallServer,
    picture_part,
    sound_part,
)
from support.oracles.recordings import recording

pytestmark = pytest.mark.engine

FORMATS = ("wav", "mp3", "opus", "m4a")
ANSWERS = {
    "seven_plus_five": "Seven plus five is twelve.",
    "day_after_monday": "Tuesday comes after Monday.",
    "cow": "A cow says moo.",
    "capital_of_france": "The capital of France is Paris.",
}


def in_format(name: str, form: str) -> bytes:
    """A recorded question in a file of a format."""
    data = recording(name)
    if form == "opus":
        return data
    samples = samples_of(data, RATE_HZ)
    if form == "wav":
        return wav_of(samples, RATE_HZ)
    wave = samples[None].astype("f4") / 32768
    container, codec, sample_format = {
        "mp3": ("mp3", "libmp3lame", "fltp"),
        "m4a": ("ipod", "aac", "fltp"),
    }[form]
    return encoded_sound(wave, RATE_HZ, container, codec, sample_format)


@pytest.mark.parametrize(("form", "name"), list(zip(FORMATS, ANSWERS, strict=True)))
def test_a_spoken_question_is_answered(form: str, name: str, small: SmallServer) -> None:
    assert small.answer([sound_part(in_format(name, form), form)]) == ANSWERS[name]


def test_a_spoken_question_about_a_picture_is_answered_for_that_picture(
    small: SmallServer,
) -> None:
    sound = sound_part(recording("what_is_in_the_picture"), "opus")
    for image, answer in (
        (RED_CIRCLE, "A red circle on blue."),
        (GREEN_SQUARE, "A green square on white."),
    ):
        assert small.answer([picture_part(image), sound]) == answer


def test_what_it_said_is_transcribed_as_it_was_written(small: SmallServer) -> None:
    text = "What is seven plus five?"
    spoken = small.speak(text, voice="ben")
    files = {"file": ("said.wav", spoken, "audio/wav")}
    fields = {"model": "small", "temperature": "0"}
    url = f"{small.url}/v1/audio/transcriptions"
    reply = httpx.post(url, files=files, data=fields, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    assert words(reply.json()["text"]) == words(text)


def test_an_answer_of_its_own_is_understood_as_a_question(small: SmallServer) -> None:
    """Its speech is a question to itself: mouth and ear go together."""
    spoken = small.speak("What is seven plus five?", voice="ben")
    assert small.answer([sound_part(spoken, "wav")]) == "Seven plus five is twelve."
