"""`make gpu`: an Omni model at its real size, served as shipped: tokens checked, then its speed.

`--family` says which: Qwen3-Omni, or Qwen2.5-Omni.

The folder has no weights: they are dummy ones, the same in every process. The graph is served under
NVIDIA's MPS (`--mps on`) and asked by 1, 8 and 64 streams; then the first graph's talker's engine
is killed and eight ask again. The same folder served alone, eager and without MPS, judges the
answers:

- Text: the reference reads each prompt with its answer, and says for every token how much less
  likely it is than the likeliest. Bfloat16 rounds differently with every batch, so answers need not
  be the same; but a wrong token is several nats away.
- Codes: the reference answers some of the prompts itself. Of the answers whose text begins with the
  same token, most must begin with the same code: the talker has read the same rows until then.
  Qwen2.5-Omni's rows are the thinker's own hidden states, which bfloat16 rounds in every batch: its
  codes are judged with `--float32`, where nearly all must begin alike.
- No stage may have seen a NaN among its logits.

The tables of a server's speeds are printed only if all of that holds for it; if it does for all,
the exit code is 0. `--graph` may be given several times: each graph is served in turn, and the
first one, eager, judges all. `--graph FILE=1,8` has levels of its own. `--before` is the root of a
checkout of an earlier state: graph files of the same names are served by its code first, as they
are there, and judged by the same reference. `--lengths` measures other prompts and answers, too,
and `--rates` requests that come whether or not others were answered. With `--deterministic LEVELS`
the first graph is served once more, deterministic: then answers one at a time must be those at
once, all tokens and codes. With `--talks` so many conversations with media are held with the first
graph's server, with and without the prefix cache (`make turns`).
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path

import httpx
import yaml
from candidates import (
    SUBJECTS,
    Candidate,
    Subject,
    hidden_problem,
    in_float32,
    reference_graph,
    with_share,
)
from judging import (
    LENGTHS,
    NUM_SPOKEN,
    USUAL,
    Answer,
    Lengths,
    ask_all,
    judge,
    nan_steps,
    prompts,
)
from rich.console import Console
from support.chaos import victims
from support.printing import say
from support.server import TinyServer, mps_option, running_server
from turns import conversations, converse_all, rows_of, table_of

from omnistage.stage_configs.pick import GRAPHS

STREAMS = (1, 8, 64)
AFTER_A_KILL, NUM_ALONE = 8, 16
SHORT_TALKS = ("--turns", "3", "--side", "64", "--seconds", "1", "--words", "20", "--frames", "4")
FRAMES_OF_REFERENCE = 4
LEAST_IN_FLOAT32 = 0.9
READY_S = 600.0
ERROR_LENGTH = 3000  # letters: the end of a server's log


# The servers


# Asking


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
    server: TinyServer,
    subject: Subject,
    words: Path,
    load: Sequence[str],
    lengths: Lengths = USUAL,
    *,
    speaks: bool = True,
) -> str:
    """Returns what `omnistage bench serve` prints of a load, with speech or of text alone."""
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "serve", server.url, *load]
    command += ["--words", str(words), "--prompt-tokens", str(lengths.words), "--seed", "1"]
    command += ["--max-tokens", str(lengths.tokens)]
    if speaks:
        command += ["--modalities", "text,audio", "--frames", str(subject.num_frames)]
        command += ["--voice", subject.voice]
    else:
        command += ["--modalities", "text", "--ignore-eos"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def closed(levels: str) -> list[str]:
    """Busy streams, three answers each and at least eight."""
    counts = (max(8, 3 * int(level)) for level in levels.split(","))
    return ["--concurrency", levels, "--requests", ",".join(map(str, counts))]


def arriving(rates: str, seconds: float) -> list[str]:
    """Arrivals for so long at each rate."""
    counts = (max(8, round(float(rate) * seconds)) for rate in rates.split(","))
    return ["--rate", rates, "--requests", ",".join(map(str, counts))]


def main() -> None:
    """Serve, ask, kill, ask, measure; then let the reference judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=SUBJECTS, default="qwen3_omni")
    parser.add_argument(
        "--graph", action="append", metavar="FILE[=LEVELS]", help="default: the family's, one GPU"
    )
    parser.add_argument("--before", type=Path, help="a checkout of an earlier state, served first")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--levels", default="1,8,32,64,128", help="streams of the speed table")
    parser.add_argument("--text-levels", default="", help="streams of a table without speech")
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)), help="that are checked")
    parser.add_argument("--lengths", default="", help=f"of {','.join(LENGTHS)}, at 1 stream")
    parser.add_argument("--spoken", type=int, default=NUM_SPOKEN, help="by the reference itself")
    parser.add_argument("--rates", default="", help="requests a second")
    parser.add_argument("--seconds", type=float, default=8, help="that each rate lasts")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--float32", action="store_true", help="all stages: twice the memory")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--compare-no-mps", action="store_true", help="measure both")
    parser.add_argument("--deterministic", metavar="LEVELS", help="and so, at these streams")
    parser.add_argument("--talks", type=int, default=0, help="conversations at once, of ten turns")
    parser.add_argument("--share", type=float, help="of the thinker: to see this check fail")
    parser.add_argument("--out", type=Path, help="a folder for logs and figures")
    parser.add_argument(
        "--model", type=Path, help="keep the model's folder here: the next start is a warm one"
    )
    asked = parser.parse_args()
    subject = SUBJECTS[asked.family]
    usual = str(GRAPHS / (subject.tiny_graph if asked.tiny else subject.graph))
    candidates = [Candidate.of(one, asked.levels) for one in asked.graph or [usual]]
    if len({one.name for one in candidates}) < len(candidates):
        parser.error("--graph: two files of the same name")
    now = candidates[0]
    candidates[0] = replace(now, has_talks=asked.talks > 0)
    if asked.deterministic:
        candidates.append(Candidate(now.path, asked.deterministic, is_deterministic=True))
    if asked.before is not None:
        if problem := hidden_problem(asked.before):
            parser.error(f"--before: {problem}")
        earlier = [one.before(asked.before) for one in candidates if not one.is_deterministic]
        if not any(one.path.exists() for one in earlier):
            names = ", ".join(str(one.path) for one in earlier)
            parser.error(f"--before: it has none of the graph files: {names}")
        candidates = [one for one in earlier if one.path.exists()] + candidates
    if unknown := {name for name in asked.lengths.split(",") if name} - LENGTHS.keys():
        parser.error(f"--lengths: {', '.join(sorted(unknown))}: is none of {', '.join(LENGTHS)}")
    if asked.spoken < 1:
        parser.error("--spoken: at least 1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = asked.out or folder
        sys.exit(check(asked, candidates, folder, out))


def check(
    asked: argparse.Namespace, candidates: Sequence[Candidate], folder: Path, out: Path
) -> int:
    """The exit code."""
    subject, model = SUBJECTS[asked.family], asked.model or folder / "model"
    if model.exists():
        say(f"a warm start: {model} is there, and what was compiled for it")
    else:
        subject.write(model, asked.tiny)
    graphs = {one.name: one.graph() for one in candidates}
    least = LEAST_IN_FLOAT32 if asked.float32 else subject.least_in_bf16
    for name, graph in graphs.items():
        if asked.float32:
            in_float32(graph)
        served = with_share(graph, asked.share) if asked.share else graph
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(served))
    run = Run(asked, subject, model, folder, out)
    for one in candidates:
        for has_mps in [not asked.no_mps] + ([False] if asked.compare_no_mps else []):
            run.serve(one, has_mps)
    judging = next(graphs[one.name] for one in candidates if one.checkout is None)
    return 0 if run.judge(reference_graph(judging, folder), least) else 1


@dataclass
class Served:
    """The answers of one server, its tables by name, and its steps with a NaN by stage.

    `num_others`: of a deterministic one, answers that are others alone than at once.
    """

    answers: dict[tuple[str, Lengths], list[Answer]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    nan_steps: list[dict[str, int]] = field(default_factory=list)
    num_others: int = 0


class Run:
    """The servers of one run: what each answered, and how fast."""

    def __init__(
        self, asked: argparse.Namespace, subject: Subject, model: Path, folder: Path, out: Path
    ) -> None:
        self._asked, self._subject, self._folder, self._out = asked, subject, folder, out
        self._words = model / "words.txt"
        self._options = ["--model", str(model), *([] if asked.tiny else ["--load-format", "dummy"])]
        self._streams = [int(one) for one in asked.streams.split(",")]
        self._lengths = {name: LENGTHS[name] for name in asked.lengths.split(",") if name}
        self._served: dict[str, Served] = {}
        self._num_failed = 0

    def serve(self, candidate: Candidate, has_mps: bool) -> None:
        """Measure a graph's server; one that fails is said, and the next has its turn."""
        way = f"{candidate.name}, {'MPS' if has_mps else 'no MPS'}"
        try:
            self._served[way] = self._serve(way, candidate, has_mps)
        except Exception as error:  # noqa: BLE001 - whatever it is, others can be measured
            say(f"{way}: FAILED: {str(error)[-ERROR_LENGTH:]}")
            self._num_failed += 1

    def _serve(self, way: str, candidate: Candidate, has_mps: bool) -> Served:
        """Ask a graph's server, measure it, kill its talker's engine and ask again."""
        log = self._out / f"{way.replace(', ', '-').replace(' ', '-')}.log"
        began = time.monotonic()
        path = self._folder / f"{candidate.name}.yaml"
        options = [*self._options, *mps_option(has_mps)]
        with running_server(str(path), log, *options, checkout=candidate.checkout) as server:
            say(f"{way}: ready after {time.monotonic() - began:.1f} s")
            served = Served()
            for count in self._streams:
                served.answers[f"{count} at once", USUAL] = self._ask(server, count)
            if candidate.is_deterministic:
                served.num_others = self._num_others(server, way, served)
            for kind, lengths in self._lengths.items():
                alone = self._ask(server, lengths.num_checked, lengths, at_once=1)
                served.answers[f"{kind}, 1 at once", lengths] = alone
            served.tables = self._measure(server, candidate.levels)
            if candidate.has_talks:
                served.tables["turns"] = self._talk(server)
            tables = self._out / f"{log.stem}-not-judged.txt"
            tables.write_text("\n".join(served.tables.values()))
            served.nan_steps.append(nan_steps(server))
            if not self._served and not self._asked.no_kill:
                say(f"{way}: speech {revive(server, self._subject.voice):.1f} s after a kill -9")
                served.answers["after a kill", USUAL] = self._ask(server, AFTER_A_KILL)
                served.nan_steps.append(nan_steps(server))
        return served

    def _ask(
        self,
        server: TinyServer,
        count: int,
        lengths: Lengths = USUAL,
        frames: int | None = None,
        at_once: int = 1 << 20,
    ) -> list[Answer]:
        subject = self._subject
        questions = prompts(self._words.read_text().split(), count, lengths)
        frames = subject.num_frames if frames is None else frames
        return asyncio.run(
            ask_all(server, subject.voice, questions, frames, at_once, lengths.tokens)
        )

    def _num_others(self, server: TinyServer, way: str, served: Served) -> int:
        """How many answers one at a time are not those that were given at once."""
        at_once = served.answers[f"{self._streams[-1]} at once", USUAL]
        alone = self._ask(server, min(NUM_ALONE, len(at_once)), at_once=1)
        num_others = sum(one != other for one, other in zip(alone, at_once, strict=False))
        num_equal = len(alone) - num_others
        say(f"{way}: alone as at once: {num_equal} of {len(alone)}, all their tokens and codes")
        return num_others

    def _talk(self, server: TinyServer) -> str:
        """The table of conversations with images and sounds, all with and without what is read."""
        options = ["--salted", "--conversations", str(self._asked.talks)]
        options += SHORT_TALKS if self._asked.tiny else []
        asked = conversations().parse_args(options)
        words = self._words.read_text().split()
        found = asyncio.run(converse_all(server, words, asked))
        first = next(iter(found.values()))
        lines = [line for name, talks in found.items() for line in rows_of(name, talks, first)]
        with StringIO() as text:
            Console(file=text, width=140).print(table_of(lines))
            return text.getvalue()

    def _measure(self, server: TinyServer, levels: str) -> dict[str, str]:
        """The tables that were asked for, by name."""
        asked = self._asked
        loads: dict[str, tuple[list[str], Lengths, bool]] = {}
        if levels:
            loads["streams"] = (closed(levels), USUAL, True)
        for kind, lengths in self._lengths.items():
            words = f"{kind}, {lengths.words} words, {lengths.tokens} tokens"
            loads[words] = (closed("1"), lengths, True)
        if asked.text_levels:
            loads["text alone"] = (closed(asked.text_levels), USUAL, False)
        if asked.rates:
            loads["arrivals"] = (arriving(asked.rates, asked.seconds), USUAL, True)
        return {
            name: speed_table(server, self._subject, self._words, load, lengths, speaks=speaks)
            for name, (load, lengths, speaks) in loads.items()
        }

    def judge(self, reference: Path, least: float) -> bool:
        """Returns whether the reference finds all right; prints the tables of the servers that
        were.
        """
        if not self._served:
            return False
        began = time.monotonic()
        log, subject = self._out / "reference.log", self._subject
        is_right = not self._num_failed
        with running_server(str(reference), log, *self._options, *mps_option(False)) as server:
            say(f"reference: ready after {time.monotonic() - began:.1f} s")
            expected = {}
            for lengths in (USUAL, *self._lengths.values()):
                count = min(lengths.num_checked, self._asked.spoken)
                expected[lengths] = self._ask(server, count, lengths, FRAMES_OF_REFERENCE, 1)
            for way, served in self._served.items():
                verdicts = [
                    asyncio.run(
                        judge(
                            server,
                            f"{way}, {name}",
                            answers,
                            expected[lengths],
                            subject.num_frames,
                            least,
                            lengths.tokens,
                        )
                    )
                    for (name, lengths), answers in served.answers.items()
                ]
                say(f"NaN steps: {served.nan_steps}")
                has_nan = any(any(stages.values()) for stages in served.nan_steps)
                is_same = not served.num_others
                if has_nan or not is_same or not all(verdict.is_right for verdict in verdicts):
                    say(f"{way}: WRONG: none of its figures counts")
                    is_right = False
                    continue
                for name, table in served.tables.items():
                    say(f"{way}, {name}\n{table}")
        say(f"{subject.tiny}: {'right' if is_right else 'WRONG'}")
        return is_right


if __name__ == "__main__":
    main()
