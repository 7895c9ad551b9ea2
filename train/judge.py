"""Judges a served model: its voices by an independent recogniser, its answers word by word."""

import argparse
import base64
import io
import random
import wave
from collections import Counter
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from ear import Ear, Samples, errors, words
from pictures import ask, draw, scene
from PIL import Image
from texts import spoken, talk, to_speak
from voices import FLITE_RATE_HZ, SPEAKERS, speak


def at_16k(content: bytes) -> Samples:
    """Samples of a WAV, resampled by straight lines."""
    with wave.open(io.BytesIO(content)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    places = np.arange(int(len(samples) * FLITE_RATE_HZ / rate)) * rate / FLITE_RATE_HZ
    made: Samples = np.interp(places, np.arange(len(samples)), samples).astype(np.int16)
    return made


def as_wav(samples: Samples) -> str:
    """Base64 of a WAV at 16 kHz."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(FLITE_RATE_HZ)
        file.writeframes(samples.tobytes())
    return base64.b64encode(made.getvalue()).decode()


def as_png(pixels: npt.NDArray[np.uint8]) -> str:
    """A data URL of a PNG."""
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, "PNG")
    return f"data:image/png;base64,{base64.b64encode(made.getvalue()).decode()}"


class Judge:
    """Asks a server held-out questions and has it speak held-out sentences."""

    def __init__(self, url: str, count: int) -> None:
        self._client = httpx.Client(base_url=url, timeout=300)
        self._model = self._client.get("/v1/models").json()["data"][0]["id"]
        self._count = count
        self._ear = Ear()

    def voices(self, temperature: float) -> None:
        """Print word errors per voice, beside flite's own."""
        for speaker in SPEAKERS:
            pick = random.Random(11)
            ours = theirs = total = 0
            for _ in range(self._count):
                text = to_speak(pick, held_out=True)
                wanted = words(text)
                body = {"model": self._model, "input": text, "voice": speaker}
                body |= {"response_format": "wav", "temperature": temperature, "seed": 1}
                reply = self._client.post("/v1/audio/speech", json=body)
                reply.raise_for_status()
                ours += errors(wanted, self._ear.hear(at_16k(reply.content)))
                theirs += errors(wanted, self._ear.hear(speak(text, speaker)))
                total += len(wanted)
            print(
                f"{speaker}, temperature {temperature}: word error {100 * ours / total:.1f} %, "
                f"of flite's own sound {100 * theirs / total:.1f} % ({total} words)",
                flush=True,
            )

    def answers(self) -> None:
        """Print the share of right answers and of natural ends, per kind."""
        pick = random.Random(12)
        right: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        stopped = 0
        for number in range(3 * self._count):
            kind, messages, answer = self._question(pick, number % 3)
            body = {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": 80}
            reply = self._client.post("/v1/chat/completions", json={**body, "modalities": ["text"]})
            reply.raise_for_status()
            choice = reply.json()["choices"][0]
            asked[kind] += 1
            right[kind] += choice["message"]["content"] == answer
            stopped += choice["finish_reason"] == "stop"
        for kind, count in sorted(asked.items()):
            print(f"{kind}: {100 * right[kind] / count:.0f} % of {count} right", flush=True)
        print(f"natural ends: {100 * stopped / asked.total():.1f} %", flush=True)

    def _question(self, pick: random.Random, kind: int) -> tuple[str, list[Any], str]:
        if kind == 0:
            one = talk(pick, held_out=True)
            roles = ("user", "assistant")
            turns = [
                {"role": roles[index % 2], "content": turn}
                for index, turn in enumerate(one.turns[:-1])
            ]
            if one.system:
                turns.insert(0, {"role": "system", "content": one.system})
            return "text", turns, one.answer
        if kind == 1:
            made = scene(pick, held_out=True)
            question, answer = ask(made, pick)
            url = {"type": "image_url", "image_url": {"url": as_png(draw(made, 128, pick))}}
            content = [url, {"type": "text", "text": question}]
            return "picture", [{"role": "user", "content": content}], answer
        _, question, answer = spoken(pick, held_out=True)
        sound = {"data": as_wav(speak(question, pick.choice(SPEAKERS))), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": sound}]
        return "spoken question", [{"role": "user", "content": content}], answer


def main() -> None:
    """Print the figures of train/README.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--count", type=int, default=200, help="sentences a voice, questions a kind"
    )
    given = parser.parse_args()
    judge = Judge(given.url, given.count)
    judge.answers()
    judge.voices(0.0)
    judge.voices(0.9)


if __name__ == "__main__":
    main()
