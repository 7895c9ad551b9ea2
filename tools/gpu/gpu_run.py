"""The servers of one run of `make gpu`: what each answered, how fast, and whether it was right."""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import httpx
from busy import cores
from candidates import Candidate, Subject
from judging import LENGTHS, USUAL, Answer, Lengths, ask_all, judge, nan_steps, prompts
from rich.console import Console
from support.faults.chaos import victims
from support.printing import say
from support.servers.server import TinyServer, mps_option, running_server
from turns import conversations, converse_all, rows_of, table_of

AFTER_A_KILL, NUM_ALONE = 8, 16
SHORT_TALKS = ("--turns", "3", "--side", "64", "--seconds", "1", "--words", "20", "--frames", "4")
FRAMES_OF_REFERENCE = 4
READY_S = 600.0
ERROR_LENGTH = 3000  # letters: the end of a server's log


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
    with cores(server) as used:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "\n".join((done.stdout + done.stderr, *used))


def closed(levels: str) -> list[str]:
    """Busy streams, three answers each and at least eight."""
    counts = (max(8, 3 * int(level)) for level in levels.split(","))
    return ["--concurrency", levels, "--requests", ",".join(map(str, counts))]


def arriving(rates: str, seconds: float) -> list[str]:
    """Arrivals for so long at each rate."""
    counts = (max(8, round(float(rate) * seconds)) for rate in rates.split(","))
    return ["--rate", rates, "--requests", ",".join(map(str, counts))]


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
        if self._asked.max_first_sound:
            options += ["--max-first-sound", str(self._asked.max_first_sound)]
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
