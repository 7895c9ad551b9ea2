"""`make turns`: the first sound of each turn of conversations with images and sounds.

The same conversations go to one server after another, which differ in the thinker's option
`row_cache_gib` alone: with 0 each turn is prefilled whole, otherwise it reads the prefix cache.
With `--salted` they go to each server twice: first with a `cache_salt` of its own for each turn, so
that it reads nothing of those before, then without. The table says for each turn: the tokens of its
prompt and those that were read, the time to the first sound at the client, and when the thinker's
first token was there, ms after the request's head was read.

The codes are compared with those of the first server. With `--tiny`, in float32, they must be
equal; in bfloat16 only the share is told.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import yaml
from overlap import BLOCK, Answer, ask
from rich.console import Console
from rich.table import Table
from support.api.prompts import RATE, image_part, picture, sound, sound_part, text
from support.printing import say
from support.servers.server import TinyServer, mps_option, running_server

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

WARM_UP = 1 << 20
Turns = list[Answer]


def user_turn(words: Sequence[str], number: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Words, an image and a sound: others each time, always the same."""
    chance = Random(number)
    coarse = picture(asked.side // BLOCK, asked.side // BLOCK, number)  # its file is small
    samples = sound(RATE * asked.seconds + 160 * (number % 50))
    parts = [
        text(" ".join(chance.choices(words, k=asked.words))),
        image_part(coarse.resize((asked.side, asked.side))),
        sound_part(samples),
    ]
    return {"role": "user", "content": parts}


async def converse(
    server: TinyServer,
    words: Sequence[str],
    first: int,
    asked: argparse.Namespace,
    is_salted: bool = False,
) -> Turns:
    """A conversation of so many turns, each with all that was said before."""
    messages: list[dict[str, Any]] = []
    answers = []
    for turn in range(asked.turns):
        messages.append(user_turn(words, first + turn, asked))
        more = {"cache_salt": f"turn {first + turn}"} if is_salted else {}
        answers.append(await ask(server, messages, asked.frames, **more))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return answers


async def converse_all(
    server: TinyServer, words: Sequence[str], asked: argparse.Namespace
) -> dict[str, list[Turns]]:
    """So many conversations at once, after one that nobody measures; twice with `--salted`."""
    numbers = range(0, 100 * asked.conversations, 100)
    found = {}
    ways = {"salted": True, "not salted": False} if asked.salted else {"": False}
    for name, is_salted in ways.items():
        await converse(server, words, WARM_UP, asked, is_salted)
        talks = (converse(server, words, number, asked, is_salted) for number in numbers)
        found[name] = list(await asyncio.gather(*talks))
    return found


def with_rows(graph: dict[str, Any], gib: str, asked: argparse.Namespace, folder: Path) -> Path:
    """The graph whose thinker keeps so many GiB of rows, and takes so long conversations."""
    stages = {name: {**stage} for name, stage in graph["stages"].items()}
    thinker = stages["thinker"]
    thinker["options"] = {**thinker.get("options", {}), "row_cache_gib": float(gib)}
    limits = {"image": asked.turns, "audio": asked.turns}
    thinker["engine"] = {**thinker.get("engine", {}), "limit_mm_per_prompt": limits}
    if asked.max_model_len:
        for name in ("thinker", "talker"):
            longest = {"max_model_len": asked.max_model_len}
            stages[name]["engine"] = {**stages[name]["engine"], **longest}
    path = folder / f"rows-{gib}.yaml"
    path.write_text(yaml.safe_dump({**graph, "stages": stages}))
    return path


def rows_of(gib: str, found: list[Turns], first: list[Turns]) -> list[list[str]]:
    """A line for each turn: medians over the conversations."""
    lines = []
    for turn, (answers, others) in enumerate(
        zip(zip(*found, strict=True), zip(*first, strict=True), strict=True)
    ):
        sound_ms = median(answer.first_sound_ms for answer in answers)
        token_ms = median(answer.marks["thinker.first_token"] for answer in answers)
        pairs = zip(answers, others, strict=True)
        num_equal = sum(one.codes == other.codes for one, other in pairs)
        prompt, cached = (median(one.tokens[n] for one in answers) for n in (0, 1))
        equal = f"{num_equal}/{len(answers)}"
        figures = [f"{prompt:.0f}", f"{cached:.0f}", f"{sound_ms:.1f}", f"{token_ms:.1f}"]
        lines.append([gib, str(turn + 1), *figures, equal])
    return lines


def table_of(lines: list[list[str]]) -> Table:
    """The figures, tokens and ms."""
    table = Table()
    names = ("row_cache_gib", "turn", "prompt", "read", "TTFP p50", "thinker.first_token p50")
    for name in (*names, "codes equal"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*line)
    return table


def conversations() -> argparse.ArgumentParser:
    """Returns what is said, on a command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--conversations", type=int, default=4, help="at once")
    parser.add_argument("--side", type=int, default=448, help="pixels: of 448, 196 tokens")
    parser.add_argument("--seconds", type=int, default=5, help="of each sound")
    parser.add_argument("--words", type=int, default=60, help="of each turn")
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--salted", action="store_true", help="also with nothing that is read")
    return parser


def main() -> None:
    """Serve and converse with each size, then compare."""
    parser = argparse.ArgumentParser(parents=[conversations()])
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_omni_1gpu.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--sizes", default="0,1", help="values of row_cache_gib")
    parser.add_argument("--max-model-len", type=int, help="of thinker and talker")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--out", type=Path, help="a folder for logs")
    parser.add_argument("--model", type=Path, help="keep the model's folder here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compare(asked, Path(name))


def compare(asked: argparse.Namespace, folder: Path) -> None:
    """Print the table; SystemExit if float32's codes differ."""
    model = asked.model or folder / "model"
    graph_file, words = asked.graph, ["one", "two", "six"]
    if asked.tiny:
        graph_file = GRAPHS / "qwen3_omni_tiny.yaml"
        write_tiny_checkpoint(model, 0)
    else:
        if not model.exists():
            write_real_size_folder(model)
        words = (model / "words.txt").read_text().split()
    graph = yaml.safe_load(graph_file.read_text())
    options = ["--model", str(model), *([] if asked.tiny else ["--load-format", "dummy"])]
    options += mps_option(not (asked.no_mps or asked.tiny))
    first: list[Turns] = []
    lines = []
    for gib in asked.sizes.split(","):
        log = (asked.out or folder) / f"rows-{gib}.log"
        with running_server(str(with_rows(graph, gib, asked, folder)), log, *options) as server:
            found = asyncio.run(converse_all(server, words, asked))
        for name, talks in found.items():
            first = first or talks
            way = f"{gib} {name}".strip()
            lines += rows_of(way, talks, first)
            say(f"row_cache_gib {way}: {json.dumps([one[4] for one in lines[-asked.turns :]])} ms")
    Console(width=140).print(table_of(lines))
    if asked.tiny and any(
        one[-1] != f"{asked.conversations}/{asked.conversations}" for one in lines
    ):
        raise SystemExit("codes differ, and in float32 they must not")


if __name__ == "__main__":
    main()
