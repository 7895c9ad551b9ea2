"""`make forecast`: a simulated server beside the real one, in the same minutes, on this machine.

A tiny Qwen3-Omni is served on the CPU. Its steps are measured where only one kind of work runs:
text alone gives the thinker's, given texts that are spoken give the talker's and code2wav's. The
simulation is fed with these, and with nothing of the chats that it forecasts: chats with sound, of
busy streams and as a Poisson process. A machine that others use is faster and slower by the minute,
so steps are measured before and after each load, and both forecasts are printed beside it.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from support.server import TinyServer, running_server

from omnistage.bench.client import Client
from omnistage.bench.load import ClosedLoop, Load, OpenLoop
from omnistage.bench.report import Level
from omnistage.bench.run import Plan, run_plan
from omnistage.bench.simulation.model import (
    Answers,
    Cell,
    Curve,
    Decoder,
    Edge,
    Gateway,
    Length,
    Writer,
)
from omnistage.bench.simulation.run import simulate
from omnistage.bench.speech import SpeechClient, Texts
from omnistage.bench.workload import Workload
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

GRAPH = GRAPHS / "qwen3_omni_tiny.yaml"
NUM_TOKENS, NUM_FRAMES, NUM_WORDS, FRAME_S = 16, 40, 30, 0.08
STREAMS = (1, 4)  # of the levels that measure steps
CORES_OF_A_STAGE = 1  # OMP_NUM_THREADS of the graph
SHARES = (0.3, 0.6)  # of what the first forecast says is possible, as rates of arrivals
MS = 1000
STEP, PROMPT = "vllm:inter_token_latency_seconds", "vllm:request_prefill_time_seconds"
DECODE, ROWS = "omnistage_decode_seconds", "omnistage_decoder_batch_requests"
CPU = "process_cpu_seconds"
GATEWAY = "gateway"
ASKED = Answers(Length(NUM_WORDS), Length(NUM_TOKENS), NUM_FRAMES / NUM_TOKENS, FRAME_S)
SEEDS = count(1)  # each level has prompts of its own: none is in a prefix cache

Totals = dict[tuple[str, str], float]


class Counted(NamedTuple):
    """Of one level: what a client saw, and what the server's histograms added up to meanwhile."""

    level: Level
    sums: Totals
    counts: Totals

    def mean(self, stage: str, name: str) -> float:
        """Of a histogram of a stage."""
        return self.sums[stage, name] / self.counts[stage, name]


def totals(url: str) -> tuple[Totals, Totals]:
    """Sums and counts of all histograms, by stage and name; counters are among the sums."""
    sums, counts = Totals(), Totals()
    text = httpx.get(f"{url}/metrics", timeout=30).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.labels.get("stage", GATEWAY), family.name
            if sample.name.endswith("_count"):
                counts[key] = sample.value
            elif sample.name.endswith(("_sum", "_total")):
                sums[key] = sample.value
    return sums, counts


def run(server: TinyServer, workload: Any, load: Load, client: type[Client] = Client) -> Counted:
    """One level; it fails if an answer does."""
    plan = Plan(server.url, workload, (load,), timeout_s=300, client=client)
    before = totals(server.url)
    (level,) = asyncio.run(run_plan(plan, lambda level: None)).levels
    after = totals(server.url)
    assert not level.errors, level.errors
    sums, counts = (
        {key: value - old.get(key, 0.0) for key, value in new.items()}
        for old, new in zip(before, after, strict=True)
    )
    return Counted(level, sums, counts)


def chats(*modalities: str) -> Workload:
    """Chats of one length, with sound or without."""
    frames = NUM_FRAMES if "audio" in modalities else None
    return Workload(next(SEEDS), NUM_WORDS, NUM_TOKENS, modalities, frames=frames, ignore_eos=True)


@dataclass(frozen=True)
class Steps:
    """Levels of text alone and of given texts that are spoken, by their streams."""

    texts: dict[int, Counted]
    spoken: dict[int, Counted]

    def cell(self, graph: StageGraph) -> Cell:
        """The simulation of a server with these steps."""
        (edge,) = [one for one in graph.edges if one.target == "code2wav"]
        share = CORES_OF_A_STAGE / (os.cpu_count() or 1)
        return Cell(
            (
                self._writer("thinker", self.texts, graph, lag=0),
                self._writer("talker", self.spoken, graph, lag=1),
            ),
            Decoder("code2wav", (("cores",),), {1: self._decode()}),
            Edge(tuple(edge.chunk_sizes)),
            Gateway(self._event_s(), self._before_s()),
            Curve(((1, share),)),
        )

    def _writer(self, name: str, runs: dict[int, Counted], graph: StageGraph, lag: int) -> Writer:
        engine = graph.stages[name].engine
        steps = {streams: one.mean(name, STEP) for streams, one in runs.items()}
        prompt_s = max(0.0, runs[1].mean(name, PROMPT) - steps[1])
        return Writer(
            name,
            (("cores",),),
            engine["max_num_seqs"],
            Curve(tuple(steps.items())),
            Curve(((1, prompt_s),)),
            engine["max_num_batched_tokens"],
            lag,
            is_text=name == "thinker",
        )

    def _decode(self) -> Curve:
        """By the mean of a batch's rows; pieces of all lengths are taken to cost the same."""
        runs = self.spoken.values()
        return Curve(
            tuple(
                sorted((one.mean("code2wav", ROWS), one.mean("code2wav", DECODE)) for one in runs)
            )
        )

    def _event_s(self) -> float:
        """CPU of the gateway for an event, of a level of text with its warm-up."""
        busy = self.texts[STREAMS[-1]]
        return busy.sums[GATEWAY, CPU] / (busy.counts["thinker", STEP] * (1 + 2 / NUM_TOKENS))

    def _before_s(self) -> float:
        """What of the time to a first token is not in the thinker's engine."""
        alone = self.texts[1]
        first_s = alone.level.metrics["ttft_s"].mean
        return max(0.0, first_s - alone.mean("thinker", PROMPT) - self._event_s())


def measure(server: TinyServer) -> Steps:
    """All steps, as they are at this moment."""
    texts, spoken = dict[int, Counted](), dict[int, Counted]()
    for streams in STREAMS:
        many = ClosedLoop(streams, 16 * streams, streams)
        texts[streams] = run(server, chats("text"), many)
        few = ClosedLoop(streams, max(6, 4 * streams), streams)
        asked = Texts(next(SEEDS), NUM_WORDS, frames=NUM_FRAMES)
        spoken[streams] = run(server, asked, few, SpeechClient)
    return Steps(texts, spoken)


def told(cell: Cell) -> str:
    """The measured times in one line."""
    words = [
        f"{one.name} {_times(one.step)}, prompt {one.prompt.at(1) * MS:.0f}" for one in cell.writers
    ]
    assert cell.decoder is not None
    words.append(f"code2wav {_times(cell.decoder.decode[1])}")
    gateway = cell.gateway
    words.append(f"gateway {gateway.event_s * MS:.2f} an event, {gateway.before_s * MS:.0f} before")
    return f"ms by rows: {'; '.join(words)}"


def _times(curve: Curve) -> str:
    return ", ".join(f"{size:.1f}: {seconds * MS:.1f}" for size, seconds in curve.points)


def loads(cell: Cell, num_requests: int) -> list[Load]:
    """Busy streams, and arrivals at shares of what the simulation says is possible."""
    most = simulate(cell, ASKED, ClosedLoop(4, 40, 8)).level.rates.requests
    closed = [ClosedLoop(one, max(12, 6 * one), one) for one in (1, 2, 4)]
    return [*closed, *(OpenLoop(round(one * most, 2), num_requests, 3, 5) for one in SHARES)]


class Figure(NamedTuple):
    """What is compared."""

    title: str
    read: Callable[[Level], float]
    form: str


FIGURES = (
    Figure("TTFP p50 ms", lambda one: one.metrics["ttfp_s"].p50 * MS, ".0f"),
    Figure("TTFP p99 ms", lambda one: one.metrics["ttfp_s"].p99 * MS, ".0f"),
    Figure("RTF p50", lambda one: one.metrics["rtf"].p50, ".3f"),
    Figure("underruns", lambda one: float(one.num_underruns), ".0f"),
    Figure("audio s/s", lambda one: one.rates.audio_s, ".2f"),
)


class Compared(NamedTuple):
    """One load: forecasts by the steps before and after it, and what was measured."""

    before: Level
    after: Level
    real: Level

    def cell(self, figure: Figure) -> str:
        """Both forecasts, what was measured, and how far their mean is off."""
        first, second, real = (format(figure.read(one), figure.form) for one in self)
        made = (figure.read(self.before) + figure.read(self.after)) / 2
        measured = figure.read(self.real)
        off = f" {made / measured - 1:+.0%}" if measured else ""
        return f"{first}, {second} | {real}{off}"


def table(found: Sequence[Compared]) -> Table:
    """A line a load."""
    made = Table("load", title="forecast by the steps before, and after | measured, difference")
    for figure in FIGURES:
        made.add_column(figure.title, justify="right")
    for one in found:
        made.add_row(one.real.name, *(one.cell(figure) for figure in FIGURES))
    return made


def compare(server: TinyServer, num_requests: int) -> list[Compared]:
    """Every load between two measurements of the steps."""
    console, graph = Console(soft_wrap=True), load_graph(GRAPH)
    run(server, chats("text", "audio"), ClosedLoop(2, 4, 2))
    cells = [measure(server).cell(graph)]
    found = []
    for load in loads(cells[0], num_requests):
        real = run(server, chats("text", "audio"), load).level
        cells.append(measure(server).cell(graph))
        before, after = (simulate(cell, ASKED, load).level for cell in cells[-2:])
        found.append(Compared(before, after, real))
    for cell in cells:
        console.print(told(cell), highlight=False)
    return found


def main() -> None:
    """Serve, measure, forecast, load, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=40, help="of each rate")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name) / "model", Path(name) / "log"
        write_tiny_checkpoint(folder)
        with running_server(str(GRAPH), log, "--model", str(folder)) as server:
            found = compare(server, arguments.requests)
    Console(width=180).print(table(found))
    Console().print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
