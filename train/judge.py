"""Judges a served model: its voices by an independent recogniser, its answers word by word."""

import argparse
import base64
import io
import json
import random
import re
import wave
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from ear import Ear, Samples, errors, hearable, words
from language.questions import FEW
from language.texts import Talk, spoken, talk, to_speak
from language.tools import WEATHER, tool_talk
from pictures import ask, draw, scene
from PIL import Image
from voices import FLITE_RATE_HZ, SPEAKERS, speak

BESIDE = 16  # other answers at the same time

Maker = Callable[[random.Random], tuple[dict[str, Any], str]]


def at_16k(content: bytes) -> Samples:
    """Samples of a WAV, as the ear hears them."""
    with wave.open(io.BytesIO(content)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return hearable((samples / 32768).astype(np.float32), rate)


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
                body |= {"response_format": "wav", "seed": 1}
                body["stage_params"] = {"talker": {"temperature": temperature}}
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
        makers = {
            "text": self._text,
            "picture": self._picture,
            "spoken question": self._spoken,
            "tool": self._tool,
        }
        for _ in range(self._count):
            for kind, make in makers.items():
                more, answer = make(pick)
                body = {"model": self._model, "temperature": 0, "max_tokens": 80, **more}
                body["modalities"] = ["text"]
                reply = self._client.post("/v1/chat/completions", json=body)
                reply.raise_for_status()
                choice = reply.json()["choices"][0]
                said = _said(choice["message"])
                asked[kind] += 1
                right[kind] += said == answer
                stopped += choice["finish_reason"] in ("stop", "tool_calls")
                if said != answer:
                    print(f"{kind}: {said!r}, not {answer!r}", flush=True)
        for kind, count in sorted(asked.items()):
            print(f"{kind}: {100 * right[kind] / count:.1f} % of {count} right", flush=True)
        print(f"natural ends: {100 * stopped / asked.total():.1f} %", flush=True)

    def second_turns(self) -> None:
        """Print how many questions are answered right that follow another one and its answer."""
        pick = random.Random(5)
        makers = {"text": self._text, "picture": self._picture, "spoken question": self._spoken}
        for (before, first), (kind, second) in product(makers.items(), repeat=2):
            right = 0
            for _ in range(self._count):
                (one, said), (two, answer) = _of_one_turn(first, pick), _of_one_turn(second, pick)
                turns = [*one["messages"], {"role": "assistant", "content": said}]
                body = {"model": self._model, "temperature": 0, "max_tokens": 80}
                body |= {"modalities": ["text"], "messages": [*turns, *two["messages"]]}
                reply = self._client.post("/v1/chat/completions", json=body)
                reply.raise_for_status()
                right += _said(reply.json()["choices"][0]["message"]) == answer
            print(f"{before}, then {kind}: {right} of {self._count} right", flush=True)

    def alone(self, temperature: float) -> None:
        """Print how many spoken answers are the same alone and among others, with a seed."""
        pick = random.Random(7)
        same: Counter[str] = Counter()
        with ThreadPoolExecutor(BESIDE) as pool:
            for seed in range(self._count):
                one = self._spoken_answer(self._text(pick)[0], temperature, seed)
                others = [
                    pool.submit(self._spoken_answer, self._text(pick)[0], temperature, seed)
                    for _ in range(BESIDE)
                ]
                two = self._spoken_answer(one["question"], temperature, seed)
                for other in others:
                    other.result()
                same.update(key for key in ("transcript", "codes", "data") if one[key] == two[key])
        print(
            f"alone and among {BESIDE} others, temperature {temperature}: of {self._count} the "
            f"text of {same['transcript']}, codes of {same['codes']}, samples of {same['data']} "
            "are the same",
            flush=True,
        )

    def _spoken_answer(
        self, question: dict[str, Any], temperature: float, seed: int
    ) -> dict[str, Any]:
        """Returns text, codes and samples of an answer in a voice that the seed chooses."""
        sampling = {"temperature": temperature, "seed": seed}
        body = {"model": self._model, **question, **sampling, "return_codes": True}
        body |= {"max_tokens": 80, "stage_params": {"talker": sampling}}
        body["modalities"] = ["text", "audio"]
        body["audio"] = {"voice": SPEAKERS[seed % len(SPEAKERS)], "format": "pcm16"}
        reply = self._client.post("/v1/chat/completions", json=body)
        reply.raise_for_status()
        return {**reply.json()["choices"][0]["message"]["audio"], "question": question}

    def _text(self, pick: random.Random) -> tuple[dict[str, Any], str]:
        one = talk(pick, held_out=True)
        while one.kind in FEW:  # which are trained
            one = talk(pick, held_out=True)
        return {"messages": _messages(one)}, one.answer

    def _picture(self, pick: random.Random) -> tuple[dict[str, Any], str]:
        made = scene(pick, held_out=True)
        question, answer = ask(made, pick)
        url = {"type": "image_url", "image_url": {"url": as_png(draw(made, 128, pick))}}
        content = [url, {"type": "text", "text": question}]
        return {"messages": [{"role": "user", "content": content}]}, answer

    def _spoken(self, pick: random.Random) -> tuple[dict[str, Any], str]:
        kind, question, answer = spoken(pick, held_out=True)
        while kind in FEW:
            kind, question, answer = spoken(pick, held_out=True)
        sound = {"data": as_wav(speak(question, pick.choice(SPEAKERS))), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": sound}]
        return {"messages": [{"role": "user", "content": content}]}, answer

    def _tool(self, pick: random.Random) -> tuple[dict[str, Any], str]:
        """A call of `get_weather`, or its result read out."""
        one = tool_talk(pick, held_out=True)
        while one.kind not in ("tool call", "tool result"):
            one = tool_talk(pick, held_out=True)
        messages: list[dict[str, Any]] = _messages(Talk(one.kind, one.turns))
        if one.kind == "tool result":
            call = json.loads(re.sub("</?tool_call>", "", messages[-2]["content"]))
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            calls = [{"id": "call_1", "type": "function", "function": function}]
            messages[-2] = {"role": "assistant", "content": None, "tool_calls": calls}
            messages[-1] = {**messages[-1], "role": "tool", "tool_call_id": "call_1"}
        return {"messages": messages, "tools": [WEATHER]}, one.answer


def _of_one_turn(make: Maker, pick: random.Random) -> tuple[dict[str, Any], str]:
    """Return the first question without a system prompt or earlier turns, and its answer."""
    made = make(pick)
    while len(made[0]["messages"]) > 1:
        made = make(pick)
    return made


def _messages(one: Talk) -> list[dict[str, Any]]:
    turns = [
        {"role": ("user", "assistant")[index % 2], "content": turn}
        for index, turn in enumerate(one.turns[:-1])
    ]
    return [{"role": "system", "content": one.system}, *turns] if one.system else turns


def _said(message: dict[str, Any]) -> str:
    """The answer, a call as the model writes it."""
    calls = message.get("tool_calls")
    if not calls:
        return str(message["content"])
    function = calls[0]["function"]
    made = {"name": function["name"], "arguments": json.loads(function["arguments"])}
    return f"<tool_call>{json.dumps(made)}</tool_call>"


def main() -> None:
    """Print the figures of train/README.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--count", type=int, default=200, help="sentences a voice, questions a kind"
    )
    parser.add_argument("--only", choices=("answers", "voices", "second-turns", "alone"))
    given = parser.parse_args()
    judge = Judge(given.url, given.count)
    if given.only == "second-turns":
        judge.second_turns()
    if given.only == "alone":
        judge.alone(0.0)
        judge.alone(0.9)
    if given.only in (None, "answers"):
        judge.answers()
    if given.only in (None, "voices"):
        judge.voices(0.0)
        judge.voices(0.9)


if __name__ == "__main__":
    main()
