"""`make gpu-speech`: Qwen3-TTS at its real size on one GPU: every code checked, then its speed.

The folder has no weights: they are dummy ones, the same in every process. The graph is served as
shipped and asked by 1, 8 and 64 streams at once, greedily. The same folder served eagerly, one
request at a time, judges the answers:

- In bfloat16 rounding differs with every batch, and a code that falls differently changes all that
  follow; so most first frames must be equal, codebook by codebook.
- In float32 (`--float32`) graphs and batches round so little that nearly all frames must be.
- No stage may have seen a NaN among its logits, and every answer has all of its frames.
- With `--invariant` the server is deterministic: codes and samples of every round must be those of
  the first, greedily and with a seed. Name `--streams 1,64`.

With `--cloned` it is the type Base: each server stores a voice, and all answers speak with it.

With `--replicas 0,0` two talkers and two decoders share a GPU, with `0,1` each has its own; one of
each is the reference.

The tables of speeds are printed only if all of that holds, and then the exit code is 0.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from candidates import in_float32, replicas_of, with_replicas
from speech_asking import (
    BUILT_IN,
    CLONED,
    NUM_FRAMES,
    Codes,
    Spoken,
    ask_all,
    store_voice,
)
from support.printing import say
from support.servers.server import ADMIN_KEY, TinyServer, running_server

from omnistage.bench.speech import Texts
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_tts.checkpoint.writers import (
    write_base,
    write_custom_voice,
    write_real_base,
    write_real_custom_voice,
)

NUM_WORDS = 30
TINY_WORDS = 5  # more are cut into several requests
NUM_JUDGED, FRAMES_JUDGED = 8, 24
SAME_IN_BF16, SAME_IN_FLOAT32 = 0.6, 0.95
READY_S = 600.0


def eager_graph(graph: dict[str, Any]) -> dict[str, Any]:
    """The same stages and sizes, without graphs or compiled kernels in the talker."""
    stages = {name: dict(stage) for name, stage in graph["stages"].items()}
    engine = {**stages["talker"]["engine"], "enforce_eager": True}
    engine.pop("compilation_config", None)
    stages["talker"]["engine"] = engine
    return {**graph, "stages": stages}


def say_equal(what: str, rounds: Sequence[Sequence[Spoken]]) -> bool:
    """Returns whether all answers of each round are the first round's; says how many are."""
    first, *others = rounds
    is_same = True
    for other in others:
        codes = sum(map(np.array_equal, codes_of(first), codes_of(other)))
        samples = sum(one.pcm == two.pcm for one, two in zip(first, other, strict=True))
        say(f"{what}, as in the first round: codes of {codes}, samples of {samples}, {len(first)}")
        is_same &= codes == samples == len(first)
    return is_same


def codes_of(answers: Sequence[Spoken]) -> list[Codes]:
    """Theirs alone."""
    return [answer.codes for answer in answers]


def written(graph: dict[str, Any], name: str, folder: Path) -> str:
    """A graph file."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(graph))
    return str(path)


def is_right(name: str, answers: Sequence[Codes], expected: Sequence[Codes], least: float) -> bool:
    """Returns whether enough of the reference's frames are the same; says so."""
    whole = all(one.shape[0] == NUM_FRAMES for one in answers)
    pairs = list(zip(answers, expected, strict=False))
    first = np.mean([np.array_equal(one[0], other[0]) for one, other in pairs])
    leading = [leading_frames(one, other) for one, other in pairs]
    share = np.sum(leading) / sum(len(other) for _, other in pairs)
    right = whole and (share if least == SAME_IN_FLOAT32 else first) >= least
    say(
        f"{name}: {'right' if right else 'WRONG'}; first frames equal in {first:.0%} of "
        f"{len(pairs)}, leading frames in {share:.0%}; whole: {whole}"
    )
    return bool(right)


def leading_frames(one: Codes, other: Codes) -> int:
    """How many frames are equal before the first that is not."""
    same = (one[: len(other)] == other).all(axis=1)
    return len(same) if same.all() else int(same.argmin())


def bench(server: TinyServer, voice: str, num_words: int, *options: str) -> str:
    """Returns what `omnistage bench speech` prints."""
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "speech", server.url]
    command += ["--words", str(num_words), "--frames", str(NUM_FRAMES), "--voice", voice]
    command += ["--seed", "1", *options]
    wide = {**os.environ, "COLUMNS": "150"}
    done = subprocess.run(command, capture_output=True, text=True, env=wide)
    return f"{' '.join(options)}\n{done.stdout}{done.stderr}"


def waterfall(server: TinyServer, count: int) -> str:
    """When each event of the latest answers was, up to the first sound."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        latest = client.get("/admin/traces").json()["traces"][:count]
        found: dict[str, list[float]] = {}
        for trace in latest:
            for mark in client.get(f"/admin/traces/{trace['request_id']}").json()["timeline"]:
                found.setdefault(f"{mark['stage']}.{mark['event']}", []).append(mark["ms"])
    rows = sorted((*np.percentile(ms, (50, 95)).tolist(), name) for name, ms in found.items())
    lines = [f"{p50:8.1f} {p95:8.1f}  {name}" for p50, p95, name in rows]
    return "\n".join(["ms after the request: p50, p95", *lines])


def nan_steps(server: TinyServer) -> int:
    """Returns the steps with a NaN of all stages."""
    return sum(stage["nan_steps"] for stage in server.health().values())


def main() -> None:
    """Serve, ask, measure; then let the reference judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", type=Path, default=GRAPHS / "qwen3_tts.yaml")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--float32", action="store_true", help="exact sums, at half the speed")
    parser.add_argument(
        "--invariant", action="store_true", help="deterministic: all rounds must be equal"
    )
    parser.add_argument("--cloned", action="store_true", help="a stored voice, and the type Base")
    parser.add_argument("--replicas", default="", help="GPUs of each stage's: 0,0 or 0,1")
    parser.add_argument("--rates", default="1,5,10,20,30,40,50", help="requests a second")
    parser.add_argument("--seconds", type=float, default=12, help="that each rate lasts")
    parser.add_argument("--levels", default="1,8,64", help="streams of the closed loop")
    parser.add_argument("--streams", default="1,8,64", help="that are checked")
    parser.add_argument("--out", type=Path, help="a folder for logs")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.exit(check(asked, Path(name), asked.out or Path(name)))


def check(asked: argparse.Namespace, folder: Path, out: Path) -> int:
    """The exit code."""
    model, voice = folder / "model", CLONED if asked.cloned else BUILT_IN
    if asked.tiny:
        (write_base if asked.cloned else write_custom_voice)(model, 0)
        asked.graph = GRAPHS / "qwen3_tts_tiny.yaml"
    else:
        (write_real_base if asked.cloned else write_real_custom_voice)(model)
    graph = yaml.safe_load(asked.graph.read_text())
    if asked.float32:
        in_float32(graph)
    if asked.invariant:
        graph["deterministic"] = True
    single, gpus = graph, replicas_of(asked.replicas)
    if gpus:
        graph = with_replicas(graph, gpus)
    num_words = TINY_WORDS if asked.tiny else NUM_WORDS
    streams = [int(one) for one in asked.streams.split(",")]
    texts = [Texts(7, num_words).text(number) for number in range(max(*streams, NUM_JUDGED))]
    options = [
        "--admin-key",
        ADMIN_KEY,
        "--model",
        str(model),
        *([] if asked.tiny else ["--load-format", "dummy"]),
    ]
    rounds: dict[str, list[Spoken]] = {}
    sampled: list[list[Spoken]] = []
    began = time.monotonic()
    with running_server(written(graph, "served", folder), out / "served.log", *options) as server:
        say(f"ready after {time.monotonic() - began:.1f} s")
        if asked.cloned:
            store_voice(server)
        for count in streams:
            some = texts[: max(count, NUM_JUDGED)]
            rounds[f"{count} at once"] = asyncio.run(ask_all(server, voice, some, at_once=count))
            if asked.invariant:
                asking = ask_all(server, voice, some, at_once=count, is_greedy=False)
                sampled.append(asyncio.run(asking)[:NUM_JUDGED])
        spoken = partial(bench, server, voice, num_words)
        tables = [spoken("--concurrency", asked.levels)] if asked.levels else []
        for rate in asked.rates.split(",") if asked.rates else []:
            count = max(10, round(float(rate) * asked.seconds))
            tables.append(spoken("--rate", rate, "--requests", str(count)))
            tables.append(waterfall(server, count))
        num_nan = nan_steps(server)
    eager = written(eager_graph(single), "eager", folder)
    with running_server(eager, out / "eager.log", *options) as server:
        if asked.cloned:
            store_voice(server)
        judged = ask_all(server, voice, texts[:NUM_JUDGED], FRAMES_JUDGED, at_once=1)
        expected = asyncio.run(judged)
        num_nan += nan_steps(server)
    least = SAME_IN_FLOAT32 if asked.float32 or asked.tiny else SAME_IN_BF16
    verdicts = [
        is_right(name, codes_of(answers), codes_of(expected), least)
        for name, answers in rounds.items()
    ]
    say(f"NaN steps: {num_nan}")
    if len(rounds) > 1:
        greedy = [answers[:NUM_JUDGED] for answers in rounds.values()]
        is_same = say_equal("greedy", greedy)
        if sampled:
            is_same &= say_equal("with a seed", sampled)
        verdicts.append(not asked.invariant or is_same)
    if num_nan or not all(verdicts):
        say("WRONG: no figure of this run counts")
        return 1
    for table in tables:
        say(table)
    return 0


if __name__ == "__main__":
    main()
