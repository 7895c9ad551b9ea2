"""`make realtime-speed`: sessions of /v1/realtime over Qwen3-Omni at its real size on one GPU.

The folder has no weights: they are dummy ones. The graph is served once for each of `--ahead`
(`A/H`: what --answer-ahead and --history-ahead are). Each server is compared first and again at its
end: sessions speak questions of `--speech-seconds`, two turns each, and a chat with the same
messages must give the same text, greedily. Bfloat16 rounds differently where a cache was read, so
texts may part; then the chat's likeliest token there may be no more than GAP_NATS above the
session's. Prompts have as many tokens, and no stage saw a NaN. Between, `omnistage bench realtime`
measures levels `SESSIONSxTURNS`, and with `--barge-ins` a session each of whose turns interrupts
the answer before it. Its client truncates what it did not play; most answers are whole by then.

A server whose texts are others makes the exit code 1, and its tables are not printed. `--tiny` runs
all on a CPU.
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from judging import nan_steps
from rich.console import Console
from rich.table import Table
from support.printing import say
from support.server import TinyServer, mps_option, running_server
from websockets.sync.client import ClientConnection, connect

from omnistage.bench.metrics import summarize
from omnistage.bench.realtime.report import SessionsLevel, SessionsReport, TurnSample
from omnistage.bench.realtime.voice import Samples, synthesized
from omnistage.server.media.audio.wav import wav_header
from omnistage.server.runtime.samples import SampleFormat
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

GAP_NATS = 0.5
INSTRUCTIONS = "Be short."
TURNS_COMPARED = 2
NUM_TOP = 5
SILENCE_MS = 500
MS = 1000.0
BARGE_INS = ("--interruptions", "1")


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


def gap_of(text: str, chat: str, tokens: Sequence[dict[str, Any]]) -> float:
    """How many nats a text's token is below the chat's, where it is the first other one."""
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
    return 0.0 if not said else float("inf")


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


def bench(
    server: TinyServer, path: Path, level: str, asked: argparse.Namespace, *more: str
) -> SessionsLevel:
    """Run `omnistage bench realtime` at `SESSIONSxTURNS`."""
    sessions, _, turns = level.partition("x")
    session = {"instructions": INSTRUCTIONS, "max_output_tokens": asked.tokens}
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "realtime", server.url]
    command += ["--sessions", sessions, "--turns", turns, "--seed", "1", "--json", str(path)]
    command += [
        "--speech-seconds",
        str(asked.speech_seconds),
        "--silence-ms",
        str(SILENCE_MS),
        *more,
    ]
    command += ["--extra-session", json.dumps(session)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        say(f"{level}: FAILED: {done.stdout[-2000:]} {done.stderr[-1000:]}")
    report = SessionsReport.model_validate_json(path.read_text())
    return report.levels[0]


def waits(turns: Sequence[TurnSample]) -> list[str]:
    """How many turns, and p50 and p95 of the first sound after two events, ms."""
    row = [str(len(turns))]
    for begin in ("decided_s", "spoken_s"):
        pairs = [(getattr(one, begin), one.first_sound_s) for one in turns]
        summary = summarize(to - of for of, to in pairs if of is not None and to is not None)
        row += (
            ["", ""] if summary is None else [f"{summary.p50 * MS:.0f}", f"{summary.p95 * MS:.0f}"]
        )
    return row


def lines_of(name: str, level: SessionsLevel) -> list[list[str]]:
    """All turns of a level, then some of a session by their place in it."""
    ahead = ", ".join(f"{key} {count}" for key, count in level.ahead.items())
    rate, failed = f"{level.audio_rate:.1f}", str(len(level.errors))
    rows = [[name, *waits(level.turns), rate, failed, ahead]]
    if level.sessions == 1:
        for turn in level.turns:
            tokens = f"{turn.input_tokens} tokens, {turn.cached_tokens} read"
            rows.append([f"turn {turn.number + 1}", *waits([turn]), "", "", tokens])
    return rows


def measure(server: TinyServer, ahead: str, out: Path, asked: argparse.Namespace) -> Table:
    """Each level, and interruptions."""
    table = Table(title=f"{ahead}: first sound after the decided end, after the last sample, ms")
    for column in ("", "turns", "p50", "p95", "p50", "p95", "audio s/s", "failed", "more"):
        table.add_column(column, justify="left" if column in ("", "more") else "right")
    stem = ahead.replace("/", "-")
    for text in asked.levels.split(","):
        level = bench(server, out / f"{stem}-{text}.json", text, asked)
        for line in lines_of(text, level):
            table.add_row(*line)
        say(json.dumps(lines_of(text, level)))
    if asked.barge_ins:
        text = f"1x{asked.barge_ins}"
        path = out / f"{stem}-barge-in.json"
        level = bench(server, path, text, asked, *BARGE_INS)
        pairs = zip(level.turns, level.turns[1:], strict=False)
        behind = [one for before, one in pairs if before.interrupted_s is not None]
        row = ["after a barge-in", *waits(behind), "", str(len(level.errors))]
        stops = level.barge_in_s
        more = f"late deltas {level.num_late_deltas}"
        if stops is not None:
            more += f", response.done after {stops.p50 * MS:.0f}, {stops.p95 * MS:.0f}"
        table.add_row(*row, more)
        say(json.dumps([*row, more]))
    return table


def serve(ahead: str, model: Path, out: Path, asked: argparse.Namespace) -> bool:
    """One server: compared, then measured."""
    answers, _, histories = ahead.partition("/")
    greedy = {"temperature": 0, "ignore_eos": "true"}
    defaults = {
        "thinker": {**greedy, "max_tokens": asked.tokens},
        "talker": {**greedy, "max_tokens": asked.frames, "repetition_penalty": 1},
    }
    options = ["--model", str(model), "--answer-ahead", answers, "--history-ahead", histories]
    for stage, values in defaults.items():
        for key, value in values.items():
            options += ["--set-default", f"{stage}.{key}={value}"]
    options += [] if asked.tiny else ["--load-format", "dummy"]
    options += mps_option(not (asked.no_mps or asked.tiny))
    began = time.monotonic()
    with running_server(str(asked.graph), out / f"{answers}-{histories}.log", *options) as server:
        say(f"ahead {ahead}: ready after {time.monotonic() - began:.1f} s")
        if not compare(server, asked):
            return False
        table = measure(server, ahead, out, asked)
        is_right = compare(server, asked)  # still
        if is_right:
            Console(width=150).print(table)
    return is_right


def main() -> None:
    """Serve each way; the exit code is 1 if one's answers are others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_omni_1gpu.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--ahead", default="0/0,8/16", help="of the servers, one after the other")
    parser.add_argument("--levels", default="1x10,8x3,32x2", help="sessions and their turns")
    parser.add_argument("--barge-ins", type=int, default=6, help="turns that interrupt; 0: none")
    parser.add_argument("--speech-seconds", type=float, default=10)
    parser.add_argument("--compared", type=int, default=3, help="sessions, of two turns each")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer's text")
    parser.add_argument("--frames", type=int, default=50, help="of an answer's speech, 80 ms each")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--out", type=Path, help="a folder for logs and samples")
    parser.add_argument("--model", type=Path, help="keep the model's folder here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = asked.out or folder
        out.mkdir(parents=True, exist_ok=True)
        model = asked.model or folder / "model"
        if asked.tiny:
            asked.graph = GRAPHS / "qwen3_omni_tiny.yaml"
            write_tiny_checkpoint(model, 0)
        elif not model.exists():
            write_real_size_folder(model)
        right = [serve(ahead, model, out, asked) for ahead in asked.ahead.split(",")]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
