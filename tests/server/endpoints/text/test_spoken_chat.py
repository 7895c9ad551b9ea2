"""Spoken answers as OpenAI's own client reads them, whole and streamed."""

import base64
import io
import wave
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from support.fakes.stages import SAMPLES_PER_FRAME
from support.gateway.serving import MODEL, RunningGateway
from support.gateway.spoken_chats import NUM_FRAMES, TEXT, asked, events_of, spoken
from support.media.audio import SHORTEST, num_samples_of, samples_of

from omnistage.server.tasks.chat.checks import CHAT_FORMATS

PCM = np.arange(NUM_FRAMES * SAMPLES_PER_FRAME, dtype="<i2").tobytes()
CODES = [[frame, 9] for frame in range(NUM_FRAMES)]


@pytest.mark.parametrize("form", ["pcm16", "wav"])
def test_a_whole_spoken_answer(form: str, openai: OpenAI) -> None:
    body = spoken("words", form, extra_body={"return_codes": True})
    completion = openai.chat.completions.create(**body)
    message = completion.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert message.audio.id.startswith("audio_")
    assert message.audio.expires_at > completion.created
    assert message.audio.transcript == TEXT
    assert message.audio.model_dump()["codes"] == CODES
    data = base64.b64decode(message.audio.data, validate=True)
    if form == "wav":
        with wave.open(io.BytesIO(data)) as sound:
            assert (sound.getframerate(), sound.getnchannels()) == (24_000, 1)
            data = sound.readframes(sound.getnframes())
    assert data == PCM
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.audio_tokens == NUM_FRAMES
    assert completion.usage.completion_tokens == 3 + NUM_FRAMES


def test_speech_alone_is_spoken_without_its_words(openai: OpenAI, client: httpx.Client) -> None:
    body = spoken("words", stream_options={"include_usage": True}) | {"modalities": ["audio"]}
    events = events_of(client, body)
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    completion = openai.chat.completions.create(**whole)
    message = completion.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert (message.audio.transcript, base64.b64decode(message.audio.data)) == ("", PCM)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3 + NUM_FRAMES
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    sounds = [delta["audio"] for delta in deltas if "audio" in delta]
    assert b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds) == PCM
    assert not any("transcript" in sound for sound in sounds)
    assert not any(delta.get("content") for delta in deltas)
    assert ["id" in sound for sound in sounds] == [True] + [False] * (len(sounds) - 1)
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    both = events_of(client, spoken("words", stream_options={"include_usage": True}))
    assert events[-1]["usage"] == both[-1]["usage"]


def test_calls_of_tools_are_sent_beside_speech_alone(client: httpx.Client) -> None:
    body = spoken("tool") | {"modalities": ["audio"]}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_1"]


def test_what_was_spoken_without_its_words_is_remembered_by_its_id(
    openai: OpenAI, gateway: RunningGateway
) -> None:
    body = spoken("words") | {"modalities": ["audio"]}
    audio = openai.chat.completions.create(**body).choices[0].message.audio
    assert audio is not None
    turn: Any = {"role": "assistant", "audio": {"id": audio.id}}
    openai.chat.completions.create(model=MODEL, messages=[turn, *asked("words")["messages"]])
    said = gateway.stages.stages["thinker"].last_body["messages"][0]
    assert said == {"role": "assistant", "content": TEXT}


def test_streamed_speech_keeps_openai_s_order(client: httpx.Client) -> None:
    body = spoken("words", stream_options={"include_usage": True}, return_codes=True)
    events = events_of(client, body)
    choices = [event["choices"][0] for event in events[:-1]]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens_details"]["audio_tokens"] == NUM_FRAMES
    assert choices[0]["delta"] == {"role": "assistant", "refusal": None}
    assert sum("role" in choice["delta"] for choice in choices) == 1
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    sounds = [choice["delta"]["audio"] for choice in choices[1:-1]]
    assert not any(choice["delta"].get("content") for choice in choices)
    assert ["id" in sound for sound in sounds] == [True] + [False] * (len(sounds) - 1)
    assert ["expires_at" in sound for sound in sounds] == [False] * (len(sounds) - 1) + [True]
    assert "".join(sound.get("transcript", "") for sound in sounds) == TEXT
    data = [base64.b64decode(sound["data"], validate=True) for sound in sounds if "data" in sound]
    assert all(len(piece) % 2 == 0 for piece in data)
    assert b"".join(data) == PCM
    assert [frame for sound in sounds for frame in sound.get("codes", ())] == CODES


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_speech_in_every_format_is_one_file(
    form: str, is_streamed: bool, client: httpx.Client
) -> None:
    body = spoken("words", form)
    if is_streamed:
        events = events_of(client, body)
        sounds = [event["choices"][0]["delta"].get("audio", {}) for event in events]
    else:
        message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        sounds = [message["audio"]]
    assert "".join(sound.get("transcript", "") for sound in sounds) == TEXT
    data = b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds)
    read = samples_of(data)
    assert len(read) >= len(PCM) // 2
    if form == "flac":
        assert read.tobytes() == PCM


def test_streamed_wav_has_one_header(client: httpx.Client) -> None:
    events = events_of(client, spoken("words", "wav"))
    sounds = [event["choices"][0]["delta"].get("audio", {}) for event in events]
    data = b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds)
    assert data[:4] == b"RIFF"
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    assert data[44:] == PCM


def test_the_stream_helper_reads_speech(openai: OpenAI) -> None:
    with openai.chat.completions.stream(**spoken("words")) as stream:
        for _ in stream:
            continue
        message = stream.get_final_completion().choices[0].message
    assert message.role == "assistant"
    assert message.audio is not None
    assert message.audio.id.count("audio_") == 1
    assert message.audio.transcript == TEXT


@pytest.mark.parametrize("script", ["silent", "tool"])
@pytest.mark.parametrize("form", CHAT_FORMATS)
def test_an_answer_without_words_is_a_file_without_samples(
    form: str, script: str, openai: OpenAI, client: httpx.Client
) -> None:
    message = openai.chat.completions.create(**spoken(script, form)).choices[0].message
    assert message.audio is not None
    data = base64.b64decode(message.audio.data)
    assert bool(data) == (form != "pcm16")
    assert num_samples_of(form, data) <= SHORTEST[form]
    assert message.audio.transcript == ""
    assert bool(message.tool_calls) == (script == "tool")
    events = events_of(client, spoken(script, form))
    sounds = [event["choices"][0]["delta"].get("audio", {}) for event in events]
    streamed = b"".join(base64.b64decode(sound.get("data", "")) for sound in sounds)
    assert bool(streamed) == (form != "pcm16")
    assert num_samples_of(form, streamed) <= SHORTEST[form]
    assert sum("id" in sound for sound in sounds) == 1
    assert sum("expires_at" in sound for sound in sounds) == 1


def test_a_spoken_answer_can_be_named_later(gateway: RunningGateway, openai: OpenAI) -> None:
    audio = openai.chat.completions.create(**spoken("words")).choices[0].message.audio
    assert audio is not None
    history: list[Any] = [
        {"role": "assistant", "audio": {"id": audio.id}},
        {"role": "user", "content": "on"},
    ]
    openai.chat.completions.create(model=MODEL, messages=history)
    body = gateway.stages.stages["thinker"].last_body
    assert body["messages"][0] == {"role": "assistant", "content": TEXT}
    history[0] = {"role": "assistant", "audio": {"id": "audio_unknown"}}
    with pytest.raises(BadRequestError) as refusal:
        openai.chat.completions.create(model=MODEL, messages=history)
    assert refusal.value.code == "audio_not_found"
    assert refusal.value.param == "messages[0].audio.id"
