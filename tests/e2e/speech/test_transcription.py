"""Transcripts on the real server: what a chat about the same sound answers."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from support.api.prompts import SHORT, text
from support.servers.server import TinyServer

from omnistage.server.media.audio.encoder import make_encoder
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.transcripts.transcription_fields import (
    TranscriptionRequest,
    TranslationRequest,
)

NUM_TOKENS = 12
LIMIT: dict[str, Any] = {"max_completion_tokens": NUM_TOKENS}

pytestmark = pytest.mark.engine


def sound_in(form: str) -> bytes:
    encoder = make_encoder(form, is_streamed=False, samples=SampleFormat(24_000))
    return encoder.encode(SHORT.tobytes()) + encoder.finish()


@pytest_asyncio.fixture
async def openai(server: TinyServer) -> AsyncIterator[AsyncOpenAI]:
    url = f"{server.url}/v1"
    async with AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as connected:
        yield connected


async def chat(server: TinyServer, file: bytes, instruction: str) -> str:
    """What a chat answers."""
    sound = {"data": base64.b64encode(file).decode(), "format": "wav"}
    parts = [{"type": "input_audio", "input_audio": sound}, text(instruction)]
    body = {"model": server.model, "temperature": 0, **LIMIT}
    body["messages"] = [{"role": "user", "content": parts}]
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(f"{server.url}/v1/chat/completions", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_a_transcript_is_what_the_chat_answers(
    server: TinyServer, openai: AsyncOpenAI
) -> None:
    wav = sound_in("wav")
    told = TranscriptionRequest(file=wav, language="en").instruction
    expected = await chat(server, wav, told)
    assert expected
    options: dict[str, Any] = {"model": server.model, "file": wav, "extra_body": LIMIT}
    answer = await openai.audio.transcriptions.create(**options, language="en")
    assert answer.text == expected
    assert answer.usage.input_token_details.audio_tokens > 0
    assert answer.usage.output_tokens <= NUM_TOKENS
    stream = await openai.audio.transcriptions.create(**options, language="en", stream=True)
    *deltas, done = [event async for event in stream]
    assert "".join(event.delta for event in deltas) == done.text == expected


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_a_translation_is_what_the_chat_answers(
    server: TinyServer, openai: AsyncOpenAI
) -> None:
    wav = sound_in("wav")
    expected = await chat(server, wav, TranslationRequest(file=wav).instruction)
    options: dict[str, Any] = {"model": server.model, "file": wav, "extra_body": LIMIT}
    assert (await openai.audio.translations.create(**options)).text == expected


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
async def test_sound_in_many_formats(form: str, server: TinyServer, openai: AsyncOpenAI) -> None:
    answer = await openai.audio.transcriptions.create(
        model=server.model,
        file=("upload", sound_in(form)),
        response_format="verbose_json",
        extra_body=LIMIT,
    )
    assert answer.duration == pytest.approx(len(SHORT) / 24_000, abs=0.1)
    assert answer.segments is not None
    (segment,) = answer.segments
    assert 0 < len(segment.tokens) <= NUM_TOKENS
    assert segment.avg_logprob < 0


async def test_a_word_that_stands_for_a_medium_is_refused(server: TinyServer) -> None:
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(
            f"{server.url}/v1/audio/transcriptions",
            data={"prompt": "Say <|audio_pad|>."},
            files={"file": ("upload", sound_in("wav"))},
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


async def test_a_transcript_beyond_the_context_is_an_error(server: TinyServer) -> None:
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(
            f"{server.url}/v1/audio/transcriptions",
            data={"prompt": "x" * 990},
            files={"file": ("upload", sound_in("wav"))},
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
