"""`make gpu-media`: Qwen3-Omni at its real size under long prompts and media, checked, on one GPU.

The folder has no weights: they are dummy ones. One server has a level for each of `--kinds`: `long`
keeps `--streams` busy with `--long-words` words each and `--long-tokens` of text, the others come
at `--rate` a second, as a Poisson process: a sound of ten seconds; a picture and a video; all
three. No two requests have the same media. Times count from the planned arrival.

The same weights served eagerly, without MPS, answer the first `--checked` requests of each kind one
at a time, with `--tokens` of text at most. Where a text parts from theirs, its token may be
GAP_NATS below the likeliest there; the first frames of speech must be equal in most answers whose
texts are equal. No stage may have seen a NaN. The table has the kinds for which that holds; if one
is missing, the exit code is 1. `--tiny`
runs on a CPU.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import yaml
from candidates import SUBJECTS, reference_graph
from judging import MIN_SAME_FIRST_CODES, nan_steps
from overlap import BLOCK, Answer, streamed
from realtime_texts import GAP_NATS, NUM_TOP, gap_of
from rich.console import Console
from rich.table import Table
from support.api.prompts import (
    RATE,
    image_part,
    picture,
    sound,
    sound_part,
    text,
    video_bytes,
    video_part,
)
from support.printing import say
from support.servers.server import TinyServer, mps_option, running_server

from omnistage.stage_configs.pick import GRAPHS

KINDS = ("long", "sound", "seen", "all")
FRAME_S = 0.08
WARM_UP = 1 << 20  # the number of requests that nobody measures
FRAMES_CHECKED = 4


@dataclass(frozen=True)
class Timed:
    """An answer, and when it was whole, s."""

    answer: Answer
    whole_s: float


class Requests:
    """Makes the requests of a kind: others each time, always the same."""

    def __init__(self, words: Sequence[str], asked: argparse.Namespace) -> None:
        self._words, self._asked = words, asked

    def messages(self, kind: str, number: int) -> list[Any]:
        """The messages of the request of this number."""
        asked, chance = self._asked, Random(f"{kind} {number}")
        if kind == "long":
            said = " ".join(chance.choices(self._words, k=asked.long_words))
            return [{"role": "user", "content": said}]
        parts, seed = [text(" ".join(chance.choices(self._words, k=20)))], chance.randrange(1 << 30)
        if kind in ("seen", "all"):
            coarse = picture(asked.side // BLOCK, asked.side // BLOCK, seed)
            parts.append(image_part(coarse.resize((asked.side, asked.side))))
            parts.append(video_part(video_bytes(asked.video_frames, asked.side // 2, seed=seed)))
        if kind in ("sound", "all"):
            samples = sound(RATE * asked.sound_seconds)
            parts.append(sound_part(np.roll(samples, chance.randrange(len(samples)))))
        return [{"role": "user", "content": parts}]

    def tokens(self, kind: str) -> int:
        """How many an answer's text has."""
        return int(self._asked.long_tokens if kind == "long" else self._asked.tokens)


def body_of(
    server: TinyServer, messages: list[Any], tokens: int, frames: int, **more: Any
) -> dict[str, Any]:
    """A request of these lengths: the likeliest token and code every time."""
    talker = {"temperature": 0, "repetition_penalty": 1, "max_tokens": frames, "ignore_eos": True}
    lengths = {"max_completion_tokens": tokens, "ignore_eos": True}
    return server.body(messages, stage_params={"talker": talker}, **lengths, **more)


async def ask(
    client: httpx.AsyncClient, server: TinyServer, content: bytes, begins: float
) -> Timed:
    """One streamed answer, from its planned arrival on."""
    await asyncio.sleep(max(0.0, begins - time.monotonic()))
    answer = await streamed(client, server, content, begins)
    return Timed(answer, time.monotonic() - begins)


async def load(
    server: TinyServer, kind: str, requests: Requests, asked: argparse.Namespace
) -> list[Timed]:
    """All answers of a level, behind one that nobody measures."""
    more = {"stream": True, "return_timeline": True, "stream_options": {"include_usage": True}}

    def content(number: int) -> bytes:
        messages = requests.messages(kind, number)
        tokens = requests.tokens(kind)
        return json.dumps(body_of(server, messages, tokens, asked.frames, **more)).encode()

    contents = [content(number) for number in range(asked.requests)]
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=256)) as client:
        await ask(client, server, content(WARM_UP), time.monotonic())
        if kind != "long":
            gaps = np.random.default_rng(1).exponential(1 / asked.rate, len(contents))
            starts = time.monotonic() + np.cumsum(gaps)
            asking = (ask(client, server, *one) for one in zip(contents, starts, strict=True))
            return list(await asyncio.gather(*asking))
        seats = asyncio.Semaphore(asked.streams)

        async def one(content: bytes) -> Timed:
            async with seats:
                return await ask(client, server, content, time.monotonic())

        return list(await asyncio.gather(*map(one, contents)))


async def are_right(
    server: TinyServer,
    kind: str,
    found: Sequence[Timed],
    requests: Requests,
    asked: argparse.Namespace,
) -> bool:
    """Say how far the first answers are from an eager server's; return whether it is rounding."""
    gaps, same = list[float](), list[bool]()
    async with httpx.AsyncClient(timeout=600) as client:
        for number, timed in enumerate(found[: asked.checked]):
            messages, answer = requests.messages(kind, number), timed.answer
            more = {"logprobs": True, "top_logprobs": NUM_TOP}
            tokens = min(requests.tokens(kind), asked.tokens)
            body = body_of(server, messages, tokens, FRAMES_CHECKED, **more)
            response = await client.post(f"{server.url}/v1/chat/completions", json=body)
            response.raise_for_status()
            choice = response.json()["choices"][0]
            audio = choice["message"]["audio"]
            read, tokens_read = audio["transcript"], choice["logprobs"]["content"]
            is_part = tokens < requests.tokens(kind)
            gaps.append(gap_of(answer.text, read, tokens_read, is_part=is_part))
            if answer.text.startswith(read.rstrip("\ufffd")) if is_part else answer.text == read:
                same.append(answer.codes[0] == audio["codes"][0])
    whole = all(len(one.answer.codes) == asked.frames for one in found)
    is_right = whole and max(gaps) <= GAP_NATS and sum(same) >= MIN_SAME_FIRST_CODES * len(same)
    say(
        f"{kind}: {'right' if is_right else 'WRONG'}; texts equal in {len(same)} of {len(gaps)}, "
        f"where they part at most {max(gaps):.2f} nats; first frames equal in {sum(same)} of "
        f"{len(same)}; all {len(found)} whole: {whole}"
    )
    return is_right


def table_of(rounds: Mapping[str, Sequence[Timed]], asked: argparse.Namespace) -> Table:
    """Returns the figures: p50, p95 and p99."""
    names = ("", "requests", "prompt", "thinker's first token ms", "first audio ms", "RTF")
    table = Table(
        title="p50, p95, p99; the first token from the request's head, others from its arrival"
    )
    for name in names:
        table.add_column(name, justify="right")
    for kind, found in rounds.items():
        answers = [one.answer for one in found]
        rtf = [one.whole_s / (asked.frames * FRAME_S) for one in found]
        rate = f"{asked.streams} streams" if kind == "long" else f"{asked.rate:g}/s"
        table.add_row(
            f"{kind}, {rate}",
            str(len(found)),
            f"{np.median([one.tokens[0] for one in answers]):.0f}",
            _three([one.marks["thinker.first_token"] for one in answers], 0),
            _three([one.first_sound_ms for one in answers], 0),
            _three(rtf, 3),
        )
    return table


def _three(values: Sequence[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in np.percentile(values, (50, 95, 99)))


def check(asked: argparse.Namespace, folder: Path) -> int:
    """The exit code."""
    subject, model, out = SUBJECTS["qwen3_omni"], folder / "model", asked.out or folder
    out.mkdir(parents=True, exist_ok=True)
    subject.write(model, asked.tiny)
    graph = yaml.safe_load(asked.graph.read_text())
    served = folder / "served.yaml"
    served.write_text(yaml.safe_dump(graph))
    options = ["--model", str(model), *([] if asked.tiny else ["--load-format", "dummy"])]
    requests = Requests((model / "words.txt").read_text().split(), asked)
    rounds = dict[str, list[Timed]]()
    with running_server(
        str(served), out / "served.log", *options, *mps_option(not asked.tiny)
    ) as server:
        for kind in asked.kinds.split(","):
            try:
                rounds[kind] = asyncio.run(load(server, kind, requests, asked))
            except Exception as error:  # noqa: BLE001 - the next kind runs
                say(f"{kind}: FAILED: {error!r}")
        nans = nan_steps(server)
    reference, right = str(reference_graph(graph, folder)), dict[str, list[Timed]]()
    with running_server(reference, out / "eager.log", *options, *mps_option(False)) as server:
        for kind, found in rounds.items():
            if asyncio.run(are_right(server, kind, found, requests, asked)):
                right[kind] = found
    say(f"NaN steps: {nans}")
    if any(nans.values()):
        say("WRONG: no figure of this run counts")
        return 1
    Console(width=150).print(table_of(right, asked))
    return 0 if len(right) == len(asked.kinds.split(",")) else 1


def main() -> None:
    """Serve, ask; then let the reference judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_omni_1gpu.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rate", type=float, default=1.0, help="requests with media a second")
    parser.add_argument("--requests", type=int, default=16, help="of each kind")
    parser.add_argument("--streams", type=int, default=8, help="of long prompts")
    parser.add_argument("--long-words", type=int, default=2500)
    parser.add_argument("--long-tokens", type=int, default=900)
    parser.add_argument("--tokens", type=int, default=64, help="of the other answers")
    parser.add_argument("--frames", type=int, default=100, help="of an answer's speech")
    parser.add_argument("--side", type=int, default=448, help="of a picture; a video has half")
    parser.add_argument("--video-frames", type=int, default=20, help="at four a second")
    parser.add_argument("--sound-seconds", type=int, default=10)
    parser.add_argument("--checked", type=int, default=6, help="answers of each kind")
    parser.add_argument("--out", type=Path, help="a folder for logs")
    asked = parser.parse_args()
    if unknown := set(asked.kinds.split(",")) - set(KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}: is none of {', '.join(KINDS)}")
    if asked.tiny:
        asked.graph = GRAPHS / "qwen3_omni_tiny.yaml"
    with tempfile.TemporaryDirectory() as name:
        sys.exit(check(asked, Path(name)))


if __name__ == "__main__":
    main()
