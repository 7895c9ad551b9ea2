"""`make gpu-ranks`: an image model over several GPUs against the same one on one GPU.

Each way of `--ways` is served with the same weights and asked for the same pictures, one after
another and `--at-once` of them together, with guidance. A way may have an attention, be compiled
and quantized: `ring:native_cudnn`, `guidance+compile+fp8`. Printed are the seconds of each, how
many times as fast that is as one GPU, the most memory of a GPU, and how far the pictures are from
those of one GPU: the mean difference of a channel, in levels of 256. Beside it is the spread of the
levels of one GPU's pictures: where it is small, such as with random weights of a real size, the
pictures say nothing. A way that fails is a row with its reason, and the exit code is 1; so it is if
a picture is farther than `--max-levels`.

The folder may have no weights (`omnistage tiny qwen-image DIR --real-size`): with `--load-format
dummy` they are random; then only the speed is judged. `--tiny` has pictures with contrast; it runs
on GPUs, or on a CPU where there are none. Bfloat16 rounds differently over several GPUs: with
`--dtype float32` pictures differ by less than a tenth of a level.

`--rates 0.1,0.2`: `omnistage bench images` loads each way with `--requests` arrivals at each rate.

`--failures`: at the end of each way a rank is killed, and another one runs out of memory; printed
are the seconds until the running request ends, and until there is a picture again. A request that
takes `--patience` seconds has failed.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import torch
import yaml
from ranks_table import ONE, WAYS, Pictures, Round, engine_of, is_right, line_of, table_of
from rich.console import Console
from support.media.pictures import pixels_of
from support.printing import say
from support.servers.server import ADMIN_KEY, TinyServer, running_server

from omnistage.stage_configs.gpus import visible_gpus
from omnistage.stage_configs.rules.parallel import num_ranks
from omnistage.stages.diffusion.checkpoint import write_tiny

FAILURES = ("kill", "memory")
PROMPT = "a fox in the snow, watercolour, number {}"
GUIDED = {"negative_prompt": "blurred", "true_cfg_scale": 4.0}
LONG = 100  # steps of the request that a rank's failure meets
KEY = {"authorization": f"Bearer {ADMIN_KEY}"}
EXTENSION = "support.denoising.rank_extension.Extension"


class PeakMemory:
    """The most memory in use of a visible GPU, in MiB, as nvidia-smi has it."""

    def __init__(self) -> None:
        self.mib = 0
        self._ends = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        if torch.cuda.is_available():
            self._thread.start()
        return self

    def _watch(self) -> None:
        query = ["nvidia-smi", "-i", ",".join(visible_gpus()), "--query-gpu=memory.used"]
        query += ["--format=csv,noheader,nounits"]
        while not self._ends.wait(0.5):
            found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
            self.mib = max(self.mib, *map(int, found.split()))

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()


async def ask(
    server: TinyServer, number: int, asked: argparse.Namespace, steps: int | None = None
) -> Any:
    """One picture."""
    body = {
        "prompt": PROMPT.format(number),
        **GUIDED,
        "size": f"{asked.side}x{asked.side}",
        "num_inference_steps": steps or asked.steps,
        "seed": number,
    }
    async with httpx.AsyncClient(timeout=asked.patience) as client:
        answer = await client.post(f"{server.url}/v1/images/generations", json=body)
    answer.raise_for_status()
    return pixels_of(answer.json()["data"][0]["b64_json"])


async def measured(server: TinyServer, asked: argparse.Namespace) -> tuple[float, float, Pictures]:
    """Seconds for one, for those at once, and all pictures; the first of each is not counted."""
    await ask(server, 0, asked)
    begun = time.perf_counter()
    pictures = [await ask(server, number, asked) for number in range(asked.alone)]
    alone_s = (time.perf_counter() - begun) / asked.alone
    numbers = range(asked.at_once)
    await asyncio.gather(*(ask(server, number, asked) for number in numbers))
    begun = time.perf_counter()
    pictures += await asyncio.gather(*(ask(server, number, asked) for number in numbers))
    return alone_s, time.perf_counter() - begun, pictures


async def failed(server: TinyServer, how: str, asked: argparse.Namespace) -> tuple[float, float]:
    """Seconds until a running request ends, by its error or in spite of it, and until the next
    picture is there.
    """
    running = asyncio.create_task(ask(server, 0, asked, LONG))
    while not server.health()["dit"]["running"]:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    if how == "kill":
        (_, second, *_) = rpc(server, "process", from_all=True)
        begun = time.perf_counter()
        os.kill(second, signal.SIGKILL)
    else:
        begun = time.perf_counter()
        rpc(server, "run_out_of_memory_on", 1)
    with suppress(httpx.HTTPError):
        await running
    told_s = time.perf_counter() - begun
    while time.perf_counter() - begun < asked.patience:
        with suppress(httpx.HTTPError):
            await ask(server, 1, asked)
            return told_s, time.perf_counter() - begun
        await asyncio.sleep(0.5)
    raise RuntimeError(f"no picture again in {asked.patience:g} s")


def bench(server: TinyServer, asked: argparse.Namespace) -> str:
    """Returns what `omnistage bench images` prints of arrivals."""
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "images", server.url]
    command += ["--rate", asked.rates, "--requests", str(asked.requests), "--rounds", "1"]
    command += ["--size", f"{asked.side}x{asked.side}", "--steps", str(asked.steps), "--seed", "1"]
    command += ["--extra-body", json.dumps(GUIDED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def rpc(server: TinyServer, method: str, *args: object, **more: object) -> Any:
    """The result of a method of the extension."""
    body = {"method": method, "args": list(args), **more}
    answer = httpx.post(f"{server.url}/admin/rpc", json=body, headers=KEY, timeout=60)
    answer.raise_for_status()
    return answer.json()["stages"]["dit"]["result"]


def served(way: str, model: Path, folder: Path, asked: argparse.Namespace) -> Round:
    """One way, by a server of its own."""
    engine: dict[str, Any] = {**engine_of(way), "load_format": asked.load_format}
    side = 64 if asked.tiny else 512
    engine |= {"warm_up": {"height": side, "width": side}, "max_megapixels": 64}
    if asked.dtype:
        engine["dtype"] = asked.dtype
    num = num_ranks(engine)
    has_failures = asked.failures and num > 1
    if has_failures:
        engine["worker_extension_cls"] = EXTENSION
    gpus = list(range(num)) if torch.cuda.is_available() else []
    stage = {"kind": "diffusers", "gpus": gpus, "engine": engine}
    graph = {"stages": {"dit": stage}, "outputs": {"image": "dit"}, "deadlines": {"hang_s": 300}}
    name = way.replace(":", "-")
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(graph))
    options = ("--model", str(model), "--admin-key", ADMIN_KEY)
    with (
        PeakMemory() as peak,
        running_server(str(path), folder / f"{name}.log", *options) as server,
    ):
        alone_s, together_s, pictures = asyncio.run(measured(server, asked))
        if asked.rates:
            say(f"{way}: {bench(server, asked)}")
        mib, failures = peak.mib, dict[str, tuple[float, float] | str]()
        for how in FAILURES if has_failures else ():
            try:
                failures[how] = asyncio.run(failed(server, how, asked))
            except Exception as error:  # noqa: BLE001 - what was measured before it counts
                failures[how] = repr(error)
        return Round(way, alone_s, together_s, pictures, mib, failures)


def main() -> None:
    """Print the table; the exit code says whether all ways work, with the pictures of one GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a pipeline's folder")
    parser.add_argument("--tiny", action="store_true", help="a tiny Qwen-Image")
    parser.add_argument("--ways", default="guidance,ulysses", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--alone", type=int, default=3, help="pictures one after another")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--max-levels", type=float, default=8.0)
    parser.add_argument("--rates", default="", help="arrivals a second")
    parser.add_argument("--requests", type=int, default=24, help="at each rate")
    parser.add_argument("--patience", type=float, default=1800, help="s for a request")
    parser.add_argument("--failures", action="store_true", help="a death, and no memory")
    asked = parser.parse_args()
    if asked.tiny:
        asked.side, asked.steps = 64, 4
    ways = list(dict.fromkeys([ONE, *asked.ways.split(",")]))
    for way in ways:
        engine_of(way)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = asked.model or folder / "tiny"
        if asked.model is None:
            write_tiny("qwen-image", model)
        console, rounds = Console(width=120), dict[str, Round | Exception]()
        for way in ways:  # each is printed at its end: a run may be cut off
            try:
                rounds[way] = served(way, model, folder, asked)
            except (Exception, AssertionError) as error:  # noqa: BLE001 - the next way runs
                rounds[way] = error
            console.print(line_of(way, rounds, asked.at_once), markup=False)
    console.print(table_of(rounds, asked.at_once))
    sys.exit(0 if is_right(rounds, asked) else 1)


if __name__ == "__main__":
    main()
