"""Questions to the embedded model, greedy, and what a recogniser hears of its speech."""

import base64
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from ear import RATE_HZ, errors, words
from pictures import Scene, Shape, draw
from PIL import Image
from support.media.audio import samples_of
from support.media.pictures import file_of
from support.oracles.recordings import ear
from support.servers.server import VERIFY, TinyServer
from support.terminal import Terminal

TIMEOUT_S = 600
SIDE = 128  # of pictures
QUIET = 400  # of 32767: no voice is that soft, and its noise between words is softer
TAIL_S = 0.6  # what may follow the last word


@dataclass(frozen=True)
class Up:
    """`omnistage up` on a terminal, which had these lines when it was ready."""

    server: TinyServer
    lines: list[str]
    page_port: int
    terminal: Terminal


class SmallServer:
    """A server of the embedded model, and a client for it."""

    def __init__(self, server: TinyServer) -> None:
        self.server = server
        self.url = server.url

    def client(self) -> httpx.AsyncClient:
        """Returns one for requests that run at the same time."""
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, verify=VERIFY)

    def post(self, path: str, body: Any) -> httpx.Response:
        """Sends JSON; the answer is a 200."""
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=TIMEOUT_S, verify=VERIFY)
        assert answer.status_code == 200, answer.text
        return answer

    def chat(self, *turns: Any, **more: Any) -> dict[str, Any]:
        """Returns the choice that answers turns of user and assistant."""
        answer: dict[str, Any] = self.post("/v1/chat/completions", chat_body(*turns, **more)).json()
        (choice,) = answer["choices"]
        return dict(choice)

    def answer(self, *turns: Any, **more: Any) -> str:
        """Returns the text of an answer that ended by itself."""
        choice = self.chat(*turns, **more)
        assert choice["finish_reason"] == "stop", choice
        return str(choice["message"]["content"])

    def speak(self, text: str, **more: Any) -> bytes:
        """Returns a file of speech: a wav, unless `response_format` says another."""
        return self.post("/v1/audio/speech", speech_body(text, **more)).content


def speech_body(text: str, **more: Any) -> dict[str, Any]:
    """Returns a request for a wav of adam's voice; speech is greedy unless it says otherwise."""
    body = {"input": text, "voice": "adam", "response_format": "wav"}
    return {**body, **more}


def chat_body(*turns: Any, **more: Any) -> dict[str, Any]:
    """Returns a greedy request; turns are contents of user and assistant by turns, or messages."""
    roles = ("user", "assistant")
    messages = [
        turn if isinstance(turn, dict) else {"role": roles[index % 2], "content": turn}
        for index, turn in enumerate(turns)
    ]
    body: dict[str, Any] = {
        "messages": messages,
        "modalities": ["text"],
        "temperature": 0,
        "max_tokens": 80,
    }
    return {**body, **more}


def big(colour: str, shape: str, ground: str) -> Image.Image:
    """Returns a picture that one shape fills."""
    scene = Scene(ground, (Shape(shape, colour, 1, 1),), big=True)
    return Image.fromarray(draw(scene, SIDE, random.Random(1)))


RED_CIRCLE, GREEN_SQUARE = big("red", "circle", "blue"), big("green", "square", "white")


def text_part(text: str) -> dict[str, Any]:
    """Returns a part of a message."""
    return {"type": "text", "text": text}


def picture_part(image: Image.Image, form: str = "PNG", **options: Any) -> dict[str, Any]:
    """Returns a part of a message with the picture as a file of a format."""
    data = base64.b64encode(file_of(image, form, **options)).decode()
    url = f"data:image/{form.lower()};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def sound_part(data: bytes, form: str) -> dict[str, Any]:
    """Returns a part of a message with a sound file."""
    sound = {"data": base64.b64encode(data).decode(), "format": form}
    return {"type": "input_audio", "input_audio": sound}


def assert_said(data: bytes, text: str) -> None:
    """A sound file says a text from its first word to its last, and then ends."""
    samples = samples_of(data, RATE_HZ)
    assert_heard(samples, text)
    assert_no_tail(samples)


def assert_heard(samples: npt.NDArray[np.int16], text: str) -> None:
    """The recogniser hears the first and the last word, and at most one word in eight wrong."""
    wanted, heard = words(text), ear().hear(samples)
    allowed = max(1, len(wanted) // 8)
    is_whole = heard[:1] == wanted[:1] and heard[-1:] == wanted[-1:]
    assert is_whole, (wanted, heard)
    assert errors(wanted, heard) <= allowed, (wanted, heard)


def assert_no_tail(samples: npt.NDArray[np.int16]) -> None:
    """After the last loud sample comes little, and the sound is no longer than slow speech."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > QUIET)
    assert len(loud) > 0
    assert (len(samples) - loud[-1]) / RATE_HZ < TAIL_S


def steps_at(pieces: Sequence[npt.NDArray[np.int16]]) -> tuple[int, int]:
    """Returns the largest step between samples at the borders of pieces, and inside of them."""
    whole = np.concatenate(pieces).astype(np.int32)
    steps = np.abs(np.diff(whole))
    borders = np.cumsum([len(piece) for piece in pieces])[:-1] - 1
    inside = np.delete(steps, borders)
    return int(steps[borders].max()), int(inside.max())
