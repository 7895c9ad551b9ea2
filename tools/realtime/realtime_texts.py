"""Compares what sessions of /v1/realtime say with chats of the same server."""

import argparse
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from judging import nan_steps
from support.printing import say
from support.servers.server import TinyServer
from websockets.sync.client import ClientConnection, connect

from omnistage.bench.realtime.voice import Samples, synthesized
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.runtime.samples import SampleFormat

GAP_NATS = 0.5
INSTRUCTIONS = "Be short."
TURNS_COMPARED = 2
NUM_TOP = 5


@dataclass(frozen=True)
class Compared:
    """One answer of a session beside a chat's; `gap` in nats, where their texts part."""

    session: str
    chat: str
    tokens: tuple[int, int]  # of both prompts
    gap: float
    same_sound_s: float  # as long are the first samples equal
    sound_s: float

    @property
    def is_right(self) -> bool:
        """Return whether no more than rounding parts them."""
        return self.tokens[0] == self.tokens[1] and self.gap <= GAP_NATS and bool(self.session)


class Speaker:
    """A session with turns by hand, and the messages of the chat that it is."""

    def __init__(self, ws: ClientConnection, server: TinyServer, num_tokens: int) -> None:
        self._ws = ws
        self._server = server
        self._num_tokens = num_tokens
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": INSTRUCTIONS}]
        settings = {
            "type": "realtime",
            "instructions": INSTRUCTIONS,
            "max_output_tokens": num_tokens,
            "audio": {"input": {"turn_detection": None}},
        }
        self._say("session.update", session=settings)
        self._until("session.updated")

    def turn(self, samples: Samples) -> Compared:
        """Speak, hear the answer, and have a chat answer the same."""
        pcm = samples.astype("<i2").tobytes()
        self._say("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())
        self._say("input_audio_buffer.commit")
        self._until("conversation.item.done")
        self._say("response.create")
        sound = b""
        while (event := self._event())["type"] != "response.done":
            if event["type"] == "response.output_audio.delta":
                sound += base64.b64decode(event["delta"])
        response = event["response"]
        if response["status"] not in ("completed", "incomplete"):
            raise RuntimeError(f"the answer ended as {response}")
        (part,) = response["output"][0]["content"]
        text = str(part["transcript"])
        wav = base64.b64encode(wav_header(SampleFormat(24_000), len(pcm)) + pcm).decode()
        audio = {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
        self._messages.append({"role": "user", "content": [audio]})
        compared = self._compare(text, sound, response["usage"]["input_tokens"])
        self._messages.append({"role": "assistant", "content": text})
        return compared

    def _compare(self, text: str, sound: bytes, num_prompt: int) -> Compared:
        body = {
            "model": self._server.model,
            "messages": self._messages,
            "modalities": ["text", "audio"],
            "audio": {"voice": "ethan", "format": "pcm16"},
            "max_completion_tokens": self._num_tokens,
            "logprobs": True,
            "top_logprobs": NUM_TOP,
        }
        url = f"{self._server.url}/v1/chat/completions"
        response = httpx.post(url, json=body, timeout=300)
        response.raise_for_status()
        chat = response.json()
        choice = chat["choices"][0]
        audio = choice["message"]["audio"]
        own = np.frombuffer(base64.b64decode(audio["data"]), "<i2")
        other = np.frombuffer(sound, "<i2")
        length = min(len(own), len(other))
        parts = np.flatnonzero(own[:length] != other[:length])
        same = int(parts[0]) if len(parts) else length
        return Compared(
            text,
            audio["transcript"],
            (num_prompt, chat["usage"]["prompt_tokens"]),
            gap_of(text, audio["transcript"], choice["logprobs"]["content"]),
            same / 24_000,
            len(other) / 24_000,
        )

    def _say(self, kind: str, **fields: Any) -> None:
        self._ws.send(json.dumps({"type": kind, **fields}))

    def _event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self._ws.recv(timeout=300))
        if event["type"] == "error":
            raise RuntimeError(f"the session was refused: {event['error']}")
        return event

    def _until(self, kind: str) -> None:
        while self._event()["type"] != kind:
            pass


def gap_of(
    text: str, chat: str, tokens: Sequence[dict[str, Any]], *, is_part: bool = False
) -> float:
    """How many nats a text's token is below the chat's, where it is the first other one.

    Equal texts are at 0. `is_part`: the chat has only the beginning of the text.
    """
    said, other = text.encode(), chat.encode()
    for token in tokens:
        here = in_text(token)
        if not other.startswith(here):  # a special token, which is not in the text
            continue
        other = other[len(here) :]
        if said.startswith(here):
            said = said[len(here) :]
            continue
        others = [
            one["logprob"]
            for one in token["top_logprobs"]
            if one["token"] != token["token"] and said.startswith(in_text(one))
        ]
        return token["logprob"] - max(others) if others else float("inf")
    return 0.0 if is_part or not said else float("inf")


def in_text(token: dict[str, Any]) -> bytes:
    """A token's part of a text, which has U+FFFD for a byte that is no letter by itself."""
    return bytes(token["bytes"] or token["token"].encode()).decode(errors="replace").encode()


def compare(server: TinyServer, asked: argparse.Namespace) -> bool:
    """Print how far the answers of sessions are from those of chats."""
    url = server.url.replace("http", "ws", 1) + "/v1/realtime"
    found: list[Compared] = []
    for number in range(asked.compared):
        with connect(url, open_timeout=60, compression=None, max_size=None) as ws:
            speaker = Speaker(ws, server, asked.tokens)
            voices = (100 * number + turn for turn in range(TURNS_COMPARED))
            found += [speaker.turn(synthesized(asked.speech_seconds, seed)) for seed in voices]
    same = sum(one.session == one.chat for one in found)
    nans = nan_steps(server)
    is_right = all(one.is_right for one in found) and not any(nans.values())
    say(
        f"{'right' if is_right else 'WRONG'}: texts equal in {same} of {len(found)}, where they "
        f"part at most {max(one.gap for one in found):.2f} nats; prompts of "
        f"{sorted({one.tokens for one in found})} tokens; first frame of sound equal in "
        f"{sum(one.same_sound_s >= 0.08 for one in found)}, all of it in "
        f"{sum(one.same_sound_s == one.sound_s > 0 for one in found)}; NaN steps {nans}"
    )
    for one in found:
        if not one.is_right:
            say(f"session {one.session!r}, chat {one.chat!r}, gap {one.gap}")
    return is_right
