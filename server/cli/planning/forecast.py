"""What a layout would do: a simulation fed with measured figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from omnistage.bench.load import ClosedLoop, OpenLoop
from omnistage.bench.report import Level
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
from omnistage.bench.simulation.run import Outcome, simulate
from omnistage.server.cli.planning.gpus import known_kinds
from omnistage.server.cli.planning.layouts import Layout
from omnistage.stage_configs.figures import DecoderFigures, Figures, WriterFigures

MS = 1e-3
BITS = 8
GIGA = 1e9
ROUNDS = 3  # requests for each stream of a simulated load, of which the first is a warm-up
LEAST_REQUESTS = 200
OPEN_S = 20.0  # of arrivals, if these are more requests
PRECISION = 0.02  # of the sessions that a cell carries
SPREAD = 0.5  # of the length of answers that come by themselves
SEED = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for.

    `speech`: the share of a session's time that speech fills. `load`: the greatest part of what is
    possible. `ttfp_ms`, `stall_ms`: what 99 of 100 answers keep within. `history`: tokens of a
    prompt that are there at every turn. `network_gbit`: of a machine.
    """

    speech: float = 0.4
    load: float = 0.7
    ttfp_ms: float = 500.0
    stall_ms: float = 200.0
    history: int = 0
    price: float | None = None
    network_gbit: float = 10.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource of a cell, and the audio s/s at which it would be full."""

    name: str
    full_at: float


@dataclass(frozen=True)
class Forecast:
    """A layout under a demand. Figures of a cell are of one gateway with its stages."""

    layout: Layout
    demand: Demand

    @property
    def factor(self) -> float:
        """How much longer everything takes here than on the GPU that was measured."""
        measured = known_kinds()[self.layout.figures.gpu.upper()]
        return measured.bandwidth / self.layout.gpus.kind.bandwidth

    @cached_property
    def cell(self) -> Cell:
        """One cell for the simulation."""
        return cell_of(self.layout, self.factor)

    def answers(self, spread: float) -> Answers:
        """What requests ask for."""
        figures = self.layout.figures
        asked = figures.answer
        return Answers(
            Length(asked.prompt_tokens + self.demand.history),
            Length(asked.text_tokens, spread),
            asked.frames / asked.text_tokens,
            asked.frame_s,
            SEED,
        )

    @cached_property
    def full(self) -> Outcome:
        """A cell with every seat of its last writers taken all the time."""
        last = self.cell.writers[-1]
        streams = last.seats * len(last.replicas)
        load = ClosedLoop(streams, (ROUNDS - 1) * streams, streams)
        return simulate(self.cell, self.answers(0.0), load)

    @cached_property
    def capacity(self) -> float:
        """The audio s/s of all cells at full load."""
        return self.full.level.rates.audio_s * self.layout.cells

    @cached_property
    def most_of_a_cell(self) -> int:
        """Sessions that one cell carries at the greatest load, within what answers must keep."""
        each = self.full.level.rates.audio_s
        most = int(each * self.demand.load / self.demand.speech + 1e-6)
        low, high = 0, most + 1
        tried = most
        while high - low > max(1, most * PRECISION):
            if tried and self.keeps(self.of_a_cell(tried).level):
                low = tried
            else:
                high = tried
            tried = (low + high) // 2
        return low

    def keeps(self, level: Level) -> bool:
        """Whether 99 of 100 answers keep within what is asked."""
        found = level.metrics
        return (
            found["ttfp_s"].p99 <= self.demand.ttfp_ms * MS
            and found["longest_stall_s"].p99 <= self.demand.stall_ms * MS
        )

    @property
    def most_sessions(self) -> int:
        """Sessions that all cells carry."""
        return self.most_of_a_cell * self.layout.cells

    def audio_s(self, sessions: int) -> float:
        """The audio s/s that so many sessions hear."""
        return sessions * self.demand.speech

    def cells_for(self, sessions: int) -> int:
        """How many cells so many sessions need."""
        return -(-sessions // self.most_of_a_cell)

    def at(self, sessions: int) -> Outcome:
        """One cell with its part of the sessions."""
        return self.of_a_cell(sessions / self.layout.cells)

    def of_a_cell(self, sessions: float) -> Outcome:
        """One cell with so many sessions, whose requests come as a Poisson process."""
        rate = sessions * self.demand.speech / self.layout.figures.audio_s
        count = max(LEAST_REQUESTS, int(rate * OPEN_S))
        load = OpenLoop(rate, count, count // 4, SEED)
        return simulate(self.cell, self.answers(SPREAD), load)

    def price(self, sessions: int) -> float:
        """Dollars for an hour of audio, of all GPUs that are given."""
        gpus = self.layout.gpus
        hourly = gpus.kind.price if self.demand.price is None else self.demand.price
        return hourly * gpus.count / self.audio_s(sessions)

    def limits(self) -> list[Limit]:
        """What of a cell is full at how many audio s/s, the first to be full first."""
        made = self.full.level.rates.audio_s
        history = self._prompts_share()
        found = [
            Limit("GPUs", made),
            Limit("gateway's core", made / self.full.gateway),
            Limit(f"network, {self.demand.network_gbit:g} Gbit/s", self._network_audio_s()),
            Limit(f"history, {self.cell.writers[0].name}'s prompts alone", made / history),
        ]
        return sorted(found, key=lambda one: one.full_at)

    def _prompts_share(self) -> float:
        """Of the first writer's time, at full load, if it did nothing but read prompts."""
        first = self.cell.writers[0]
        tokens = self.layout.figures.answer.prompt_tokens + self.demand.history
        a_token_s = first.prompt.at(first.max_tokens) / first.max_tokens
        requests = self.full.level.rates.requests
        return tokens * a_token_s * requests / len(first.replicas)

    def _network_audio_s(self) -> float:
        bytes_a_second = self.layout.figures.gateway.bytes_a_second
        return self.demand.network_gbit * GIGA / BITS / bytes_a_second


def cell_of(layout: Layout, factor: float) -> Cell:
    """A cell of a layout whose steps take `factor` times as long as they were measured."""
    figures, graph = layout.figures, layout.graph
    writers = list[Writer]()
    decoder: Decoder | None = None
    for place, one in enumerate(figures.stages):
        devices = tuple(tuple(f"GPU {gpu}" for gpu in gpus) for gpus in layout.replicas(place))
        if isinstance(one, WriterFigures):
            engine = graph.stages[one.name].engine
            writers.append(
                Writer(
                    one.name,
                    devices,
                    engine.get("max_num_seqs", one.max_num_seqs),
                    curve(part_of(one.step_ms, len(devices[0]), one.sums_ms), factor),
                    curve(part_of(one.prompt_ms, len(devices[0])), factor),
                    engine.get("max_num_batched_tokens", 2048),
                    one.late_steps,
                    one.does == "write text",
                )
            )
        else:
            decoder = _decoder(one, devices, factor)
    edge = Edge()
    for spec in graph.edges:
        if decoder is not None and spec.target == decoder.name:
            credit = int(spec.connector.options.get("credit", edge.credit))
            edge = Edge(tuple(spec.chunk_sizes), credit)
    return Cell(tuple(writers), decoder, edge, _gateway(figures), Curve(((1, figures.share),)))


def part_of(times_ms: Mapping[int, float], ranks: int, sums_ms: float = 0.0) -> dict[int, float]:
    """Times of ranks that each do a part; `sums_ms` is what their sums add to a step."""
    return {size: ms / ranks + sums_ms * (ranks > 1) for size, ms in times_ms.items()}


def _decoder(one: DecoderFigures, devices: tuple[tuple[str, ...], ...], factor: float) -> Decoder:
    times = {frames: curve(rows, factor) for frames, rows in one.decode_ms.items()}
    return Decoder(one.name, devices, times, one.batch_frames)


def _gateway(figures: Figures) -> Gateway:
    """Its core is no GPU's, so nothing of it is scaled."""
    one = figures.gateway
    return Gateway(one.event_ms * MS, one.before_ms * MS, one.after_ms * MS)


def curve(times_ms: Mapping[int, float], factor: float = 1.0) -> Curve:
    """Times by size, as a file has them."""
    return Curve(tuple((size, ms * MS * factor) for size, ms in sorted(times_ms.items())))
