"""Requests for transcripts and translations."""

import io
import wave
from typing import Any

import httpx
from support.gateway.serving import RunningGateway

from omnistage.stages.messages.to_stage import MediumPiece

URL, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"


def wav_bytes(seconds: float = 0.5) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * int(16_000 * seconds)))
    return buffer.getvalue()


WAV = wav_bytes()


def post(client: httpx.Client, url: str = URL, file: Any = WAV, **fields: Any) -> httpx.Response:
    return client.post(url, data=fields, files={"file": ("upload", file)})


def last_body(gateway: RunningGateway) -> Any:
    return gateway.stages.stages["thinker"].last_body


def instruction(gateway: RunningGateway) -> str:
    """The words beside the sound, which is silence of half a second at the model's rate."""
    (turn,) = last_body(gateway)["messages"]
    sound, told = turn["content"]
    *_, piece, _ = gateway.stages.stages["thinker"].seen
    assert isinstance(piece.message, MediumPiece)
    assert piece.message.name == sound["audio_url"]["url"]
    assert piece.tensors["data"].numpy().tolist() == [0.0] * 8_000
    return str(told["text"])
