"""`make overlap`: the first sound of a long prompt with images, its prefill in parts or whole.

The same prompts go to one server after another, which differ in the talker's option `prefill_part`
alone: 0 runs a prompt when all of it has come, as if the talker waited for the thinker. The table
says for each: the time to the first sound at the client, and when the thinker's first token, the
talker's first step and its first code were there, ms after the request's head was read.

The codes are compared with those of the first server. With `--tiny`, in float32, they must be
equal; bfloat16 rounds a prompt in parts differently from a whole one, so that there only the share
is told.
"""

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
import yaml
from PIL import Image
from rich.console import Console
from rich.table import Table
from support.api.prompts import image_part, picture, text
from support.printing import say
from support.servers.server import TinyServer, mps_option, running_server

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

DEFAULT = "default"
MARKS = ("thinker.first_token", "talker.first_prefill", "talker.first_code")
BLOCK = 32  # pixels of an image's side for one token
MAX_TOKENS = 16
JSON = {"content-type": "application/json"}
WARM_UP = (1 << 20, (1 << 20) + 1)


@dataclass
class Answer:
    """One answer: when its sound began, its timeline in ms, its codes, its words.

    `tokens`: of its prompt, and of those that were read from the prefix cache.
    """

    first_sound_ms: float = 0.0
    marks: dict[str, float] = field(default_factory=dict)
    codes: list[list[int]] = field(default_factory=list)
    text: str = ""
    tokens: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Prompts:
    """Makes prompts of images with words between them: another each time, always the same."""

    words: Sequence[str]
    num_words: int
    num_images: int
    side: int

    def messages(self, number: int) -> list[Any]:
        """Returns the messages of the request of this number."""
        chance = Random(number)
        parts = []
        for image in range(self.num_images):
            parts.append(text(" ".join(chance.choices(self.words, k=self.num_words))))
            parts.append(image_part(self._picture(100 * number + image)))
        return [{"role": "user", "content": [*parts, text(self.words[0])]}]

    def _picture(self, seed: int) -> Image.Image:
        """Coarse, so that its file is small."""
        coarse = picture(self.side // BLOCK, self.side // BLOCK, seed)
        return coarse.resize((self.side, self.side), Image.Resampling.NEAREST)


async def ask(server: TinyServer, messages: list[Any], frames: int, **more: Any) -> Answer:
    """One streamed answer: the likeliest token and code every time; `more` of its body."""
    talker = {"temperature": 0, "max_tokens": frames, "ignore_eos": True}
    body = server.body(
        messages,
        stream=True,
        max_completion_tokens=MAX_TOKENS,
        ignore_eos=True,
        return_timeline=True,
        stream_options={"include_usage": True},
        stage_params={"talker": talker},
        **more,
    )
    content = json.dumps(body).encode()
    async with httpx.AsyncClient(timeout=300) as client:
        return await streamed(client, server, content, time.monotonic())


async def streamed(
    client: httpx.AsyncClient, server: TinyServer, content: bytes, began: float
) -> Answer:
    """Send a body, and read its answer; times count from `began`, of the monotonic clock."""
    answer = Answer()
    url = f"{server.url}/v1/chat/completions"
    async with client.stream("POST", url, content=content, headers=JSON) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                read(answer, json.loads(line.removeprefix("data: ")), began)
    return answer


def read(answer: Answer, event: dict[str, Any], began: float) -> None:
    """Put an event into its answer."""
    assert "error" not in event, event
    for choice in event["choices"]:
        audio = choice["delta"].get("audio") or {}
        if audio.get("data") and not answer.first_sound_ms:
            answer.first_sound_ms = 1e3 * (time.monotonic() - began)
        answer.codes += audio.get("codes") or []
        answer.text += audio.get("transcript") or ""
    if usage := event.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        answer.tokens = usage["prompt_tokens"], details.get("cached_tokens") or 0
    for mark in event.get("timeline") or ():
        answer.marks[f"{mark['stage']}.{mark['event']}"] = mark["ms"]


async def ask_all(server: TinyServer, asked: list[Any], frames: int, at_once: int) -> list[Answer]:
    """All answers, so many at once."""
    seats = asyncio.Semaphore(at_once)

    async def one(messages: list[Any]) -> Answer:
        async with seats:
            return await ask(server, messages, frames)

    return list(await asyncio.gather(*map(one, asked)))


def with_part(graph: dict[str, Any], part: str, folder: Path) -> Path:
    """The graph whose talker has this `prefill_part`."""
    stages = {**graph["stages"]}
    options = {} if part == DEFAULT else {"prefill_part": int(part)}
    stages["talker"] = {**stages["talker"], "options": options}
    path = folder / f"part-{part}.yaml"
    path.write_text(yaml.safe_dump({**graph, "stages": stages}))
    return path


def row(name: str, at_once: int, answers: list[Answer], first: list[Answer]) -> list[str]:
    """Returns what the table says of one server's answers."""
    sounds = sorted(answer.first_sound_ms for answer in answers)
    marks = [median(answer.marks[mark] for answer in answers) for mark in MARKS]
    pairs = list(zip(answers, first, strict=True))
    num_equal = sum(one.codes == other.codes for one, other in pairs)
    num_first = sum(one.codes[:1] == other.codes[:1] for one, other in pairs)
    times = [median(sounds), sounds[math.ceil(0.95 * len(sounds)) - 1], *marks]
    counts = [f"{count}/{len(pairs)}" for count in (num_equal, num_first)]
    return [name, str(at_once), *(f"{ms:.1f}" for ms in times), *counts]


def table_of(rows: list[list[str]]) -> Table:
    """The figures, ms."""
    table = Table()
    names = ["prefill_part", "at once", "TTFP p50", "p95", *(f"{name} p50" for name in MARKS)]
    for name in (*names, "codes equal", "first frames equal"):
        table.add_column(name, justify="right")
    for one in rows:
        table.add_row(*one)
    return table


def main() -> None:
    """Serve and ask with each part, then compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_omni_1gpu.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--parts", default=f"0,{DEFAULT}", help="values of prefill_part")
    parser.add_argument("--streams", default="1,8", help="requests at once")
    parser.add_argument("--requests", type=int, default=16, help="for each number of streams")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--side", type=int, default=896, help="pixels: of 896, 784 tokens")
    parser.add_argument("--words", type=int, default=230, help="before each image")
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--out", type=Path, help="a folder for logs")
    parser.add_argument(
        "--model", type=Path, help="keep the model's folder here: the next start is a warm one"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compare(asked, Path(name))


def compare(asked: argparse.Namespace, folder: Path) -> None:
    """Print the table; SystemExit if float32's codes differ."""
    model = asked.model or folder / "model"
    graph_file, words = asked.graph, ["one"]
    if asked.tiny:
        graph_file = GRAPHS / "qwen3_omni_tiny.yaml"
        write_tiny_checkpoint(model, 0)
    else:
        if not model.exists():
            write_real_size_folder(model)
        words = (model / "words.txt").read_text().split()
    prompts = Prompts(words, asked.words, asked.images, asked.side)
    graph = yaml.safe_load(graph_file.read_text())
    options = ["--model", str(model), *([] if asked.tiny else ["--load-format", "dummy"])]
    options += mps_option(not (asked.no_mps or asked.tiny))
    streams = [int(one) for one in asked.streams.split(",")]
    first: dict[int, list[Answer]] = {}
    rows = []
    for part in asked.parts.split(","):
        log = (asked.out or folder) / f"part-{part}.log"
        with running_server(str(with_part(graph, part, folder)), log, *options) as server:
            asyncio.run(ask_all(server, [prompts.messages(n) for n in WARM_UP], asked.frames, 1))
            for count in streams:
                # Images that no engine has seen: their encoder runs.
                numbers = range(1000 * count, 1000 * count + asked.requests)
                messages = [prompts.messages(number) for number in numbers]
                answers = asyncio.run(ask_all(server, messages, asked.frames, count))
                rows.append(row(part, count, answers, first.setdefault(count, answers)))
                say(f"prefill_part {part}, {count} at once: {len(answers)} answers")
    Console(width=180).print(table_of(rows))
    if asked.tiny and any(one[-2] != f"{asked.requests}/{asked.requests}" for one in rows):
        raise SystemExit("codes differ, and in float32 they must not")


if __name__ == "__main__":
    main()
