"""Asks a server of Qwen3-TTS for speech, for `make gpu-speech`."""

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt
from support.servers.server import TinyServer

from omnistage.bench.realtime.voice import RATE_HZ, synthesized
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.runtime.samples import SampleFormat

NUM_FRAMES = 100
BUILT_IN, CLONED = "vivian", "stored"  # voices
CLONED_S = 5.0  # of a voice's audio

Codes = npt.NDArray[np.int64]


class Spoken(NamedTuple):
    """An answer's codec frames [frames, codebooks] and its int16 samples, as bytes."""

    codes: Codes
    pcm: bytes


def store_voice(server: TinyServer) -> None:
    """Have a server clone a voice; its words are not told."""
    pcm = synthesized(CLONED_S, seed=1).tobytes()
    wav = wav_header(SampleFormat(RATE_HZ), len(pcm)) + pcm
    files = {"audio_sample": ("voice.wav", wav, "audio/wav")}
    form = {"name": CLONED, "consent": "yes"}
    response = httpx.post(f"{server.url}/v1/audio/voices", data=form, files=files, timeout=60)
    assert response.status_code == 200, response.text


async def ask(
    client: httpx.AsyncClient,
    server: TinyServer,
    voice: str,
    text: str,
    frames: int,
    is_greedy: bool,
) -> Spoken:
    """One answer; the likeliest code every time, or as the talker samples by default."""
    talker: dict[str, Any] = {"max_tokens": frames, "ignore_eos": True}
    if is_greedy:
        talker |= {"temperature": 0, "repetition_penalty": 1.0}
    body = {
        "model": server.model,
        "input": text,
        "voice": voice,
        "response_format": "pcm",
        "stream_format": "sse",
        "stage_params": {"talker": talker},
        "return_codes": True,
        "seed": 1,
    }
    codes: list[list[int]] = []
    pcm = b""
    async with client.stream("POST", f"{server.url}/v1/audio/speech", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                codes += event.get("codes") or []
                pcm += base64.b64decode(event.get("audio") or "")
    return Spoken(np.array(codes), pcm)


async def ask_all(
    server: TinyServer,
    voice: str,
    texts: Sequence[str],
    frames: int = NUM_FRAMES,
    at_once: int = 1 << 20,
    is_greedy: bool = True,
) -> list[Spoken]:
    """All answers, so many at once."""
    seats = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=256)) as client:

        async def one(text: str) -> Spoken:
            async with seats:
                return await ask(client, server, voice, text, frames, is_greedy)

        return list(await asyncio.gather(*map(one, texts)))
