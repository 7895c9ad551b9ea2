"""A model that speaks with the voice of a sound."""

from typing import Any

import httpx
import numpy as np
from support.api.bodies import given_text
from support.gateway.serving import MODEL, RunningGateway
from support.media.sounds import tone, wav_of

from omnistage.connectors.chunk import Chunk
from omnistage.server.tasks.speech.reference import key_of
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Request

URL, SPEECH = "/v1/audio/voices", "/v1/audio/speech"
CLONING = Speech(["Chinese", "English"], takes_sound=True, needs_sound=True, max_text=20)
WAV = wav_of(tone())
SAMPLES = (tone() / 32768).astype(np.float32)
CONSENT = "cons_1234"


def post(client: httpx.Client, sample: Any = WAV, **fields: Any) -> httpx.Response:
    form = {"name": "Mine", "consent": CONSENT, **fields}
    parts: dict[str, Any] = {
        name: (None, value) for name, value in form.items() if value is not None
    }
    if sample is not None:
        parts["audio_sample"] = ("upload", sample)
    return client.post(URL, files=parts)


def asked(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "words", "response_format": "pcm", **more}


def last_opened(gateway: RunningGateway) -> Chunk[Request]:
    return gateway.stages.stages["thinker"].opened[-1]


def sound_of(gateway: RunningGateway) -> tuple[Any, str | None]:
    """What the entry got to speak with: samples, and their words."""
    chunk = last_opened(gateway)
    reference = given_text(chunk.message).reference
    samples = chunk.tensors["reference"].numpy()
    assert reference is not None
    assert reference.key == key_of(samples)
    return samples, reference.text
