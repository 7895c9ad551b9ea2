"""`make gpu`: an Omni model at its real size, served as shipped: tokens checked, then its speed.

`--family` says which: Qwen3-Omni, or Qwen2.5-Omni.

The folder has no weights: they are dummy ones, the same in every process. The graph is served under
NVIDIA's MPS (`--mps on`) and asked by 1, 8 and 64 streams; then its talker's engine is killed and
eight ask again. The same folder served alone, eager and without MPS, judges the answers:

- Text: the reference reads each prompt with its answer, and says for every token how much less
  likely it is than the likeliest. Bfloat16 rounds differently with every batch, so answers need not
  be the same; but a wrong token is several nats away.
- Codes: the reference answers some of the prompts itself. Of the answers whose text begins with the
  same token, most must begin with the same code: the talker has read the same rows until then.
  Qwen2.5-Omni's rows are the thinker's own hidden states, which bfloat16 rounds in every batch: its
  codes are judged with `--float32`, where nearly all must begin alike.
- No stage may have seen a NaN among its logits.

The table of speeds is printed only if all of that holds, and then the exit code is 0.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import numpy as np
import yaml
from rich.console import Console
from support.chaos import victims
from support.server import TinyServer, running_server

from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.mps import ALLOW, SHARE
from omnistage.stage_configs.pick import GRAPHS

STREAMS = (1, 8, 64)
AFTER_A_KILL = 8
NUM_WORDS, MAX_TOKENS, NUM_FRAMES = 66, 64, 100
NUM_SPOKEN, FRAMES_OF_REFERENCE = 8, 4  # of what eager mode answers itself: it is slow
GAP_NATS = 0.5  # rounding moves a logprob by less in nearly all tokens
MAX_ABOVE = 0.01  # the share of tokens that may be further away
WRONG_NATS = 2.0  # and this is no rounding
MIN_SAME_FIRST_CODES, LEAST_IN_FLOAT32 = 0.6, 0.9
READY_S = 600.0


@dataclass(frozen=True)
class Subject:
    """What is checked: its writers by name, its graph files, a voice, and frames of an answer."""

    tiny: str
    graph: str
    tiny_graph: str
    voice: str
    num_frames: int = NUM_FRAMES
    least_in_bf16: float = MIN_SAME_FIRST_CODES

    def write(self, folder: Path, is_tiny: bool) -> None:
        """A tiny checkpoint, or the real sizes without weights."""
        writers = FAMILIES.part(self.tiny, lambda family: family.tiny)
        if is_tiny:
            resolve_name(writers.write)(folder, 0)
            (folder / "words.txt").write_text("one two three four\n")
        else:
            resolve_name(writers.write_real_size)(folder)


SUBJECTS = {
    "qwen3_omni": Subject("qwen3-omni", "qwen3_omni_1gpu.yaml", "qwen3_omni_tiny.yaml", "ethan"),
    "qwen2_5_omni": Subject(
        "qwen2.5-omni", "qwen2_5_omni_1gpu.yaml", "qwen2_5_omni_tiny.yaml", "chelsie", 200, 0.0
    ),
}


@dataclass(frozen=True)
class Answer:
    """One answer's ids: of its prompt, of its text, and its codec frames [frames, 16]."""

    prompt: list[int]
    text: list[int]
    codes: list[list[int]]


@dataclass(frozen=True)
class Verdict:
    """What the reference says of one round of answers."""

    name: str
    num_tokens: int
    num_above: int
    worst: float
    num_empty: int
    num_comparable: int
    num_same_codes: int
    least: float = MIN_SAME_FIRST_CODES

    @property
    def is_right(self) -> bool:
        """Whether no more is wrong than rounding explains."""
        few = self.num_above <= MAX_ABOVE * self.num_tokens and self.worst < WRONG_NATS
        enough = self.num_same_codes >= self.least * self.num_comparable
        return few and enough and self.num_tokens > 0 and self.num_empty == 0

    def __str__(self) -> str:
        return (
            f"{self.name}: {'right' if self.is_right else 'WRONG'}; "
            f"{self.num_tokens} text tokens, {self.num_above} more than {GAP_NATS} nats from the "
            f"likeliest, the worst {self.worst:.2f}; first codes equal in {self.num_same_codes} of "
            f"{self.num_comparable}; {self.num_empty} answers not whole"
        )


def say(what: str) -> None:
    """Print it as it is."""
    Console(width=140).print(what, markup=False, highlight=False)


# The servers


def mps_option(has_mps: bool) -> list[str]:
    """The server's option that starts NVIDIA's MPS, or does not."""
    return ["--mps", "on" if has_mps else "off"]


def reference_graph(graph: dict[str, Any], folder: Path) -> Path:
    """The same stages and sizes, without graphs or compiled kernels."""
    stages = {name: dict(stage) for name, stage in graph["stages"].items()}
    for stage in stages.values():
        environment = {**stage.get("environment", {})}
        environment.pop(SHARE, None)
        stage["environment"] = environment
        if stage["kind"].split(".")[-1] in ("thinker", "talker"):
            engine = {**stage["engine"], "enforce_eager": True}
            engine.pop("compilation_config", None)
            stage["engine"] = engine
    path = folder / "reference.yaml"
    path.write_text(yaml.safe_dump({**graph, "stages": stages}))
    return path


def float32_graph(graph: dict[str, Any], folder: Path) -> Path:
    """The graph in float32, with caches of as many bytes as before: for half as many requests."""
    for stage in graph["stages"].values():
        engine = stage["engine"]
        engine["dtype"] = "float32"
        if "max_num_seqs" in engine:
            engine["max_num_seqs"] = max(1, engine["max_num_seqs"] // 2)
    path = folder / "float32.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


def shared_graph(graph: dict[str, Any], share: float, folder: Path) -> Path:
    """The graph with a share of the multiprocessors for its thinker: to see this check fail."""
    stages = {**graph["stages"]}
    stages["thinker"] = {**stages["thinker"], "environment": {SHARE: share}}
    os.environ[ALLOW] = "1"
    path = folder / "share.yaml"
    path.write_text(yaml.safe_dump({**graph, "stages": stages}))
    return path


# Asking


def prompts(words: Sequence[str], count: int) -> list[str]:
    """Different ones, always the same."""
    chance = random.Random(7)
    return [" ".join(chance.choices(words, k=NUM_WORDS)) for _ in range(count)]


async def ask(
    client: httpx.AsyncClient, server: TinyServer, prompt: str, frames: int, voice: str
) -> Answer:
    """One answer with its ids; the likeliest token and code every time."""
    talker = {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": frames, "ignore_eos": True}
    body = server.body(
        [{"role": "user", "content": prompt}],
        max_completion_tokens=MAX_TOKENS,
        ignore_eos=True,
        return_token_ids=True,
        stage_params={"talker": talker},
        audio={"voice": voice, "format": "pcm16"},
        seed=1,
    )
    response = await client.post(f"{server.url}/v1/chat/completions", json=body)
    response.raise_for_status()
    said = response.json()
    choice = said["choices"][0]
    return Answer(
        said["prompt_token_ids"], choice["token_ids"], choice["message"]["audio"]["codes"]
    )


async def ask_all(
    server: TinyServer, voice: str, asked: Sequence[str], frames: int, at_once: int = 1 << 20
) -> list[Answer]:
    """All answers, so many at once."""
    seats = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=256)) as client:

        async def one(prompt: str) -> Answer:
            async with seats:
                return await ask(client, server, prompt, frames, voice)

        return list(await asyncio.gather(*map(one, asked)))


async def gaps(client: httpx.AsyncClient, server: TinyServer, answer: Answer) -> list[float]:
    """How many nats each token of an answer is below the likeliest one, by this server."""
    body = {
        "model": server.model,
        "prompt": [*answer.prompt, *answer.text],
        "max_tokens": 0,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    response = await client.post(f"{server.url}/v1/completions", json=body)
    response.raise_for_status()
    found = response.json()["choices"][0]["logprobs"]
    start = len(answer.prompt)
    rows = zip(found["token_logprobs"][start:], found["top_logprobs"][start:], strict=True)
    return [max(top.values()) - given for given, top in rows]


async def judge(
    server: TinyServer,
    rounds: dict[str, list[Answer]],
    expected: list[Answer],
    frames: int,
    least: float = MIN_SAME_FIRST_CODES,
) -> list[Verdict]:
    """The reference's verdict on each round; its own answers are to the first prompts."""
    verdicts = []
    async with httpx.AsyncClient(timeout=300) as client:
        for name, answers in rounds.items():
            found = np.array([gap for one in answers for gap in await gaps(client, server, one)])
            pairs = [
                (one.codes[0], other.codes[0])
                for one, other in zip(answers, expected, strict=False)
                if one.text[:2] == other.text[:2] and one.codes and other.codes
            ]
            whole = (MAX_TOKENS, frames)
            verdict = Verdict(
                name=name,
                num_tokens=len(found),
                num_above=int((found > GAP_NATS).sum()),
                worst=float(found.max(initial=0)),
                num_empty=sum((len(one.text), len(one.codes)) != whole for one in answers),
                num_comparable=len(pairs),
                num_same_codes=sum(one[0] == other[0] for one, other in pairs),
                least=least,
            )
            say(str(verdict))
            verdicts.append(verdict)
    return verdicts


def nan_steps(server: TinyServer) -> dict[str, int]:
    """Steps with a NaN, by stage."""
    return {name: stage["nan_steps"] for name, stage in server.health().items()}


def revive(server: TinyServer, voice: str) -> float:
    """Kill the talker's engine; seconds until speech is answered again."""
    engine = next(v for v in victims(server) if (v.stage, v.role) == ("talker", "engine"))
    os.kill(engine.pid, signal.SIGKILL)
    killed = time.monotonic()
    while time.monotonic() < killed + READY_S:
        with contextlib.suppress(httpx.HTTPError):
            asyncio.run(ask_all(server, voice, ["Hello"], frames=2))
            return time.monotonic() - killed
        time.sleep(0.2)
    raise TimeoutError("no speech after the talker's engine was killed")


def speed_table(
    server: TinyServer, subject: Subject, words: Path, levels: str, folder: Path, *, speaks: bool
) -> str:
    """What `omnistage bench serve` prints of the levels, with speech or of text alone."""
    counts = ",".join(str(max(8, 3 * int(level))) for level in levels.split(","))
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "serve", server.url]
    command += ["--concurrency", levels, "--requests", counts]
    command += ["--words", str(words), "--prompt-tokens", str(NUM_WORDS), "--seed", "1"]
    command += ["--max-tokens", str(MAX_TOKENS)]
    if speaks:
        command += ["--modalities", "text,audio", "--frames", str(subject.num_frames)]
        command += ["--voice", subject.voice]
    else:
        command += ["--modalities", "text", "--ignore-eos"]
    command += ["--json", str(folder / "speed.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main() -> None:
    """Serve, ask, kill, ask, measure; then let the reference judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=SUBJECTS, default="qwen3_omni")
    parser.add_argument("--graph", type=Path, help="default: the family's for one GPU")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--levels", default="1,8,32,64,128", help="streams of the speed table")
    parser.add_argument("--text-levels", default="", help="streams of a table without speech")
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)), help="that are checked")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--float32", action="store_true", help="all stages: twice the memory")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--compare-no-mps", action="store_true", help="measure both")
    parser.add_argument("--share", type=float, help="of the thinker: to see this check fail")
    parser.add_argument("--out", type=Path, help="a folder for logs and figures")
    parser.add_argument(
        "--model", type=Path, help="keep the model's folder here: the next start is a warm one"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = asked.out or folder
        sys.exit(check(asked, folder, out))


def check(asked: argparse.Namespace, folder: Path, out: Path) -> int:
    """The exit code."""
    subject, model = SUBJECTS[asked.family], asked.model or folder / "model"
    if model.exists():
        say(f"a warm start: {model} is there, and what was compiled for it")
    else:
        subject.write(model, asked.tiny)
    usual = GRAPHS / (subject.tiny_graph if asked.tiny else subject.graph)
    asked.graph = asked.graph or usual
    voice, frames = subject.voice, subject.num_frames
    words = model / "words.txt"
    graph = yaml.safe_load(asked.graph.read_text())
    least = LEAST_IN_FLOAT32 if asked.float32 else subject.least_in_bf16
    if asked.float32:
        asked.graph = float32_graph(graph, folder)
    path = shared_graph(graph, asked.share, folder) if asked.share else asked.graph
    streams = [int(one) for one in asked.streams.split(",")]
    questions = prompts(words.read_text().split(), max(*streams, AFTER_A_KILL))
    options = ["--model", str(model), *([] if asked.tiny else ["--load-format", "dummy"])]
    rounds: dict[str, list[Answer]] = {}
    tables: dict[str, str] = {}
    seen: dict[str, dict[str, int]] = {}
    ways = [not asked.no_mps] + ([False] if asked.compare_no_mps else [])
    for has_mps in ways:
        way = "MPS" if has_mps else "no MPS"
        log = out / f"{way.replace(' ', '-')}.log"
        began = time.monotonic()
        with running_server(str(path), log, *options, *mps_option(has_mps)) as server:
            say(f"{way}: ready after {time.monotonic() - began:.1f} s")
            for count in streams:
                rounds[f"{way}, {count} at once"] = asyncio.run(
                    ask_all(server, voice, questions[:count], frames)
                )
            for name, levels, speaks in (
                (way, asked.levels, True),
                (f"{way}, text alone", asked.text_levels, False),
            ):
                if levels:
                    tables[name] = speed_table(
                        server, subject, words, levels, folder, speaks=speaks
                    )
            seen[way] = nan_steps(server)
            if has_mps is ways[0] and not asked.no_kill:
                say(f"{way}: speech {revive(server, voice):.1f} s after a kill -9")
                again = asyncio.run(ask_all(server, voice, questions[:AFTER_A_KILL], frames))
                rounds[f"{way}, after a kill"] = again
                seen[f"{way}, after a kill"] = nan_steps(server)
    began = time.monotonic()
    eager = reference_graph(graph, folder)
    with running_server(str(eager), out / "reference.log", *options, *mps_option(False)) as server:
        say(f"reference: ready after {time.monotonic() - began:.1f} s")
        own = questions[:NUM_SPOKEN]
        expected = asyncio.run(ask_all(server, voice, own, FRAMES_OF_REFERENCE, at_once=1))
        verdicts = asyncio.run(judge(server, rounds, expected, frames, least))
    say(f"NaN steps: {seen}")
    has_nan = any(count for stages in seen.values() for count in stages.values())
    if has_nan or not all(verdict.is_right for verdict in verdicts):
        say("WRONG: no figure of this run counts")
        return 1
    for way, table in tables.items():
        say(f"{way}\n{table}")
    return 0


if __name__ == "__main__":
    main()
