"""The embedded model's speech has its words, from the first to the last, by whatever door."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from ear import RATE_HZ as EAR_HZ
from support.media.audio import RATE_HZ, samples_of
from support.media.sounds import wav_of
from support.oracles.meaning import (
    SmallServer,
    assert_heard,
    assert_no_tail,
    assert_said,
    chat_body,
    speech_body,
    steps_at,
)

pytestmark = pytest.mark.engine

SENTENCES = {
    "adam": "Hello! How can I help you?",
    "ben": "Tuesday comes after Monday.",
    "colin": "I am Small, a toy model. I can talk, listen, see and draw.",
    "diana": "The capital of France is Paris.",
}
STORY = (
    "Once there was a little dog in the garden. It said woof all day. Then it went home and slept."
)


@pytest.mark.parametrize("voice", SENTENCES)
def test_each_voice_says_what_is_written(voice: str, small: SmallServer) -> None:
    assert_said(small.speak(SENTENCES[voice], voice=voice), SENTENCES[voice])


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "pcm"])
def test_each_format_has_the_words(form: str, small: SmallServer) -> None:
    data = small.speak(SENTENCES["adam"], response_format=form)
    if form == "pcm":
        data = wav_of(np.frombuffer(data, "<i2"), RATE_HZ)
    assert_said(data, SENTENCES["adam"])


@pytest.mark.parametrize("speed", [0.7, 1.25, 1.5])
def test_speech_of_another_speed_has_the_same_words_and_another_length(
    speed: float, small: SmallServer
) -> None:
    text = SENTENCES["adam"]
    usual, other = small.speak(text), small.speak(text, speed=speed)
    assert_said(other, text)
    share = len(samples_of(usual)) / len(samples_of(other))
    assert share == pytest.approx(speed, rel=0.05)


def test_three_sentences_are_said_to_the_end_of_the_last(small: SmallServer) -> None:
    assert_said(small.speak(STORY), STORY)


def test_a_spoken_answer_says_its_transcript_whole_and_streamed(small: SmallServer) -> None:
    question = "What is the capital of France?"
    more: dict[str, Any] = {"modalities": ["text", "audio"]}
    choice = small.chat(question, **more, audio={"voice": "adam", "format": "wav"})
    assert choice["finish_reason"] == "stop"
    audio = choice["message"]["audio"]
    assert_said(base64.b64decode(audio["data"]), audio["transcript"])
    transcript, pieces = streamed(small, question)
    assert transcript == audio["transcript"]
    assert len(pieces) > 1
    assert_said(wav_of(np.concatenate(pieces), RATE_HZ), transcript)


def streamed(small: SmallServer, question: str) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """Return the transcript of a streamed answer and its pieces of sound."""
    more = {"modalities": ["text", "audio"], "audio": {"voice": "adam", "format": "pcm16"}}
    reply = small.post("/v1/chat/completions", chat_body(question, stream=True, **more))
    transcript, pieces = "", []
    for line in reply.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            audio = choice["delta"].get("audio") or {}
            transcript += audio.get("transcript") or ""
            if data := base64.b64decode(audio.get("data") or ""):
                pieces.append(np.frombuffer(data, "<i2"))
    return transcript, pieces


def test_no_click_is_at_the_borders_of_pieces(small: SmallServer) -> None:
    for question in ("Who are you?", "Tell me a story about a dog in the garden."):
        _, pieces = streamed(small, question)
        assert len(pieces) > 3
        at_borders, inside = steps_at(pieces)
        assert at_borders <= inside


async def test_eight_speak_at_once_each_its_own_text(small: SmallServer) -> None:
    async def say(voice: str, text: str) -> bytes:
        async with small.client() as client:
            reply = await client.post("/v1/audio/speech", json=speech_body(text, voice=voice))
        assert reply.status_code == 200, reply.text
        return reply.content

    asked = list(SENTENCES.items()) * 2
    for (_, text), data in zip(asked, await asyncio.gather(*(say(*o) for o in asked)), strict=True):
        assert_said(data, text)


def test_a_cut_end_and_a_tail_would_be_found(small: SmallServer) -> None:
    """What the tests above rest on."""
    text = SENTENCES["adam"]
    samples = samples_of(small.speak(text), EAR_HZ)
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 400)[-1]
    with pytest.raises(AssertionError):
        assert_heard(samples[: loud - EAR_HZ * 2 // 5], text)
    noise = np.random.default_rng(0).normal(0, 2000, EAR_HZ).astype(np.int16)
    with pytest.raises(AssertionError):
        assert_said(wav_of(np.concatenate([samples[:loud], noise, noise]), EAR_HZ), text)
    with pytest.raises(AssertionError):
        assert_no_tail(np.concatenate([samples, np.zeros(EAR_HZ, np.int16)]))
