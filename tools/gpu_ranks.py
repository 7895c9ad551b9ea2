"""`make gpu-ranks`: an image model over several GPUs against the same one on one GPU.

Each way of `--ways` is served with the same weights and asked for the same pictures, one after
another and `--at-once` of them together, with guidance. Printed are the seconds of each, how many
times as fast that is as one GPU, and how far the pictures are from those of one GPU: the mean
difference of a channel, in levels of 256. Bfloat16 rounds differently over several GPUs, so they
are not the same; a picture that is nonsense differs by tens of levels. `--dtype float32` judges
more sharply. The exit code is 0 if no picture is farther than `--max-levels`.

The folder may have no weights (`omnistage tiny qwen-image DIR --real-size`): with `--load-format
dummy` they are random, and their pictures amplify rounding; then only the speed is judged.
`--tiny` runs all on a CPU, where ring needs an attention that is not there.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import yaml
from rich.console import Console
from rich.table import Table
from support.pictures import pixels_of
from support.server import TinyServer, running_server

from omnistage.stage_configs.parallel import num_ranks
from omnistage.stages.diffusion.checkpoint import write_tiny

Engine = Mapping[str, Any]
Pictures = list[npt.NDArray[np.uint8]]

WAYS: Mapping[str, Engine] = {
    "one": {},
    "guidance": {"guidance_ranks": 2},
    "ulysses": {"parallel": {"ulysses": 2}},
    "ring": {"parallel": {"ring": 2}},
    "tensor": {"parallel": {"tensor": 2}},
    "tiles": {"parallel": {"vae": 2}, "guidance_ranks": 2},
    "shard": {"parallel": {"shard": 2}},
    "ulysses-shard": {"parallel": {"ulysses": 2, "shard": 2}},
    "ulysses4": {"parallel": {"ulysses": 4}},
    "guidance-ulysses": {"parallel": {"ulysses": 2}, "guidance_ranks": 2},
}
PROMPT = "a fox in the snow, watercolour, number {}"
TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Round:
    """The outcome of one way."""

    way: str
    alone_s: float  # for a picture
    together_s: float  # for all at once
    pictures: Pictures


async def ask(server: TinyServer, number: int, asked: argparse.Namespace) -> Any:
    """One picture."""
    body = {
        "prompt": PROMPT.format(number),
        "negative_prompt": "blurred",
        "true_cfg_scale": 4.0,
        "size": f"{asked.side}x{asked.side}",
        "num_inference_steps": asked.steps,
        "seed": number,
    }
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        answer = await client.post(f"{server.url}/v1/images/generations", json=body)
    answer.raise_for_status()
    return pixels_of(answer.json()["data"][0]["b64_json"])


async def measured(server: TinyServer, way: str, asked: argparse.Namespace) -> Round:
    """All pictures one after another, then those at once; the first of each is not counted."""
    await ask(server, 0, asked)
    begun = time.perf_counter()
    pictures = [await ask(server, number, asked) for number in range(asked.alone)]
    alone_s = (time.perf_counter() - begun) / asked.alone
    numbers = range(asked.at_once)
    await asyncio.gather(*(ask(server, number, asked) for number in numbers))
    begun = time.perf_counter()
    pictures += await asyncio.gather(*(ask(server, number, asked) for number in numbers))
    return Round(way, alone_s, time.perf_counter() - begun, pictures)


def served(way: str, model: Path, folder: Path, asked: argparse.Namespace) -> Round:
    """One way, by a server of its own."""
    engine: dict[str, Any] = {**WAYS[way], "load_format": asked.load_format}
    side = 64 if asked.tiny else 512
    engine |= {"warm_up": {"height": side, "width": side}, "max_megapixels": 64}
    if asked.dtype:
        engine["dtype"] = asked.dtype
    gpus = [] if asked.tiny else list(range(num_ranks(engine)))
    stage = {"kind": "diffusers", "gpus": gpus, "engine": engine}
    graph = {"stages": {"dit": stage}, "outputs": {"image": "dit"}, "deadlines": {"hang_s": 300}}
    path = folder / f"{way}.yaml"
    path.write_text(yaml.safe_dump(graph))
    log = folder / f"{way}.log"
    with running_server(str(path), log, "--model", str(model)) as server:
        return asyncio.run(measured(server, way, asked))


def levels(one: Pictures, other: Pictures) -> float:
    """The largest mean difference of two pictures."""
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(a.astype(int) - b.astype(int)).mean()) for a, b in pairs)


def table_of(rounds: Sequence[Round], at_once: int) -> Table:
    """Returns what is printed."""
    table = Table(
        "way", "GPUs", "s a picture", "faster", f"s for {at_once}", "faster", "levels off"
    )
    one = rounds[0]
    for each in rounds:
        table.add_row(
            each.way,
            str(num_ranks(WAYS[each.way])),
            f"{each.alone_s:.2f}",
            f"{one.alone_s / each.alone_s:.2f}",
            f"{each.together_s:.2f}",
            f"{one.together_s / each.together_s:.2f}",
            f"{levels(one.pictures, each.pictures):.2f}",
        )
    return table


def main() -> None:
    """Print the table; the exit code says whether the pictures are those of one GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a pipeline's folder")
    parser.add_argument("--tiny", action="store_true", help="a tiny Qwen-Image, on a CPU")
    parser.add_argument("--ways", default="guidance,ulysses", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--alone", type=int, default=3, help="pictures one after another")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--max-levels", type=float, default=8.0)
    asked = parser.parse_args()
    if asked.tiny:
        asked.side, asked.steps = 64, 4
    ways = list(dict.fromkeys(["one", *asked.ways.split(",")]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = asked.model or folder / "tiny"
        if asked.model is None:
            write_tiny("qwen-image", model)
        console, rounds = Console(width=120), list[Round]()
        for way in ways:  # each is said at its end: a run may be cut off
            found = served(way, model, folder, asked)
            rounds.append(found)
            off = levels(rounds[0].pictures, found.pictures)
            seconds = f"{found.alone_s:.2f} s, {asked.at_once} in {found.together_s:.2f} s"
            console.print(f"{way}: {seconds}, {off:.3f} levels off")
    console.print(table_of(rounds, asked.at_once))
    worst = max(levels(rounds[0].pictures, each.pictures) for each in rounds)
    is_judged = asked.load_format != "dummy"
    sys.exit(1 if is_judged and worst > asked.max_levels else 0)


if __name__ == "__main__":
    main()
