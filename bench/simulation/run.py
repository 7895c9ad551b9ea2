"""A load of simulated requests on a cell, with what `omnistage bench` measures of real ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import fmean

from omnistage.bench.load import ClosedLoop, Load, arrivals
from omnistage.bench.metrics import Packet
from omnistage.bench.report import Level, Sample
from omnistage.bench.simulation.clock import Act, Clock, Device, Devices
from omnistage.bench.simulation.flight import Flight, Work
from omnistage.bench.simulation.model import Answers, Cell, Decoder, Writer
from omnistage.bench.simulation.stages import DecoderReplica, Replica, WriterReplica, cut

REFUSED = "503: too many requests"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated load gave: the level as of a real run, and how busy everything was.

    `busy`: the share of the time of each device, each stage (the mean of its replicas) and of the
    gateway's core. Stages beside each other on a device are slower than these shares say.
    """

    level: Level
    devices: dict[str, float]
    stages: dict[str, float]
    gateway: float


def simulate(cell: Cell, answers: Answers, load: Load) -> Outcome:
    """Every request of a load, its warm-up first; figures are those of the requests behind it."""
    return Simulation(cell, answers).run(load)


class Simulation:
    """A cell in simulated time."""

    def __init__(self, cell: Cell, answers: Answers) -> None:
        self._cell = cell
        self._answers = answers
        self._clock = Clock()
        self._random = Random(answers.seed)
        names = {name for one in self._stages() for replica in one.replicas for name in replica}
        self._devices = {name: Device(self._clock) for name in sorted(names)}
        self._writers = [self._replicas_of(place) for place in range(len(cell.writers))]
        self._decoders = self._decoders_of(cell.decoder) if cell.decoder else []
        self._gateway_free_s = self._gateway_busy_s = 0.0
        self._num_open = 0
        self._samples: list[Sample] = []

    def _stages(self) -> Iterator[Writer | Decoder]:
        yield from self._cell.writers
        if self._cell.decoder:
            yield self._cell.decoder

    def _decoders_of(self, spec: Decoder) -> list[DecoderReplica]:
        share = self._cell.share
        return [
            DecoderReplica(spec, self._clock, self._of(names), share, self._decoded)
            for names in spec.replicas
        ]

    def _replicas_of(self, place: int) -> list[WriterReplica]:
        spec = self._cell.writers[place]
        is_last = place == len(self._cell.writers) - 1
        may_write = self._has_credit if is_last else _always
        return [
            WriterReplica(
                spec,
                place,
                self._of(names),
                self._cell.share,
                partial(self._wrote, place),
                may_write,
            )
            for names in spec.replicas
        ]

    def _of(self, names: Sequence[str]) -> Devices:
        return Devices([self._devices[name] for name in names])

    def _pools(self) -> list[Sequence[Replica]]:
        """The replicas of each stage."""
        return [*self._writers, *([self._decoders] if self._decoders else [])]

    def run(self, load: Load) -> Outcome:
        """All of a load."""
        first = load.num_warmups
        if first:
            self._start_all(load, first, 0)
            self._clock.run()
        start_s = self._clock.now_s
        self._forget()
        self._start_all(load, load.num_requests, first)
        self._clock.run()
        return self._outcome(load, start_s)

    def _forget(self) -> None:
        """What the warm-up took."""
        self._samples = []
        self._gateway_busy_s = 0.0
        for device in self._devices.values():
            device.busy_s = 0.0
        for pool in self._pools():
            for replica in pool:
                replica.busy_s = 0.0

    def _start_all(self, load: Load, num_requests: int, first: int) -> None:
        numbers = range(first, first + num_requests)
        if isinstance(load, ClosedLoop):
            waiting = iter(numbers)
            for _ in range(load.concurrency):
                self._start_next(waiting)
            return
        times = arrivals(load.rate, num_requests, load.seed + first)
        for number, delay_s in zip(numbers, times, strict=True):
            self._clock.after(delay_s, partial(self._start, number, _nothing))

    def _start_next(self, waiting: Iterator[int]) -> None:
        """A stream's next request, until there is none left."""
        for number in waiting:
            self._start(number, lambda: self._start_next(waiting))
            return

    def _start(self, number: int, ended: Act) -> None:
        if self._num_open >= self._cell.gateway.max_requests:
            now_s = self._clock.now_s
            refused = Sample(number=number, start_s=now_s, end_s=now_s, error=REFUSED)
            self._samples.append(refused)
            self._clock.after(0.0, ended)
            return
        self._num_open += 1
        flight = self._flight(number, ended)
        self._clock.after(self._cell.gateway.before_s, partial(self._enter, flight))

    def _flight(self, number: int, ended: Act) -> Flight:
        """A request with lengths of its own, bound to the replica of each stage with the least."""
        asked = self._answers
        num_tokens = asked.tokens.draw(self._random)
        works = list[Work]()
        for spec in self._cell.writers:
            outputs = num_tokens if spec.is_text else round(num_tokens * asked.frames_per_token)
            source = works[-1] if works else None
            works.append(Work(asked.prompt.draw(self._random), outputs, source, spec.lag))
        flight = Flight(number, self._clock.now_s, works, asked.frame_s, ended)
        for pool in self._pools():
            chosen = min(range(len(pool)), key=lambda one: pool[one].num_open)
            pool[chosen].num_open += 1
            flight.route.append(chosen)
        return flight

    def _writer(self, flight: Flight, place: int) -> WriterReplica:
        return self._writers[place][flight.route[place]]

    def _enter(self, flight: Flight) -> None:
        for place in range(len(flight.works)):
            self._writer(flight, place).put(flight)

    def _has_credit(self, flight: Flight) -> bool:
        return flight.outstanding < self._cell.edge.credit

    def _wrote(self, place: int, flight: Flight) -> None:
        """What follows from a step of a writer for one of its requests."""
        if self._cell.writers[place].is_text:
            flight.text_arrivals_s.append(self._told_s() - flight.start_s)
        if place + 1 < len(self._writers):
            self._writer(flight, place + 1).wake()
        elif self._decoders:
            decoder = self._decoders[flight.route[-1]]
            for frames in cut(flight, self._cell.edge):
                decoder.put(flight, frames)
        if not self._decoders and flight.works[-1].is_done:
            self._end(flight)

    def _decoded(self, flight: Flight, frames: int) -> None:
        flight.decoded += frames
        arrival_s = self._told_s() - flight.start_s
        flight.packets.append(Packet(arrival_s, frames * flight.frame_s))
        if flight.decoded == flight.works[-1].outputs:
            self._decoders[flight.route[-1]].num_open -= 1
            self._end(flight)
        else:
            self._writer(flight, len(flight.works) - 1).wake()

    def _told_s(self) -> float:
        """When the client has the next event: the gateway's core writes one after the other."""
        gateway = self._cell.gateway
        self._gateway_free_s = max(self._clock.now_s, self._gateway_free_s) + gateway.event_s
        self._gateway_busy_s += gateway.event_s
        return self._gateway_free_s + gateway.after_s

    def _end(self, flight: Flight) -> None:
        """The last event of an answer."""
        self._clock.after(self._told_s() - self._clock.now_s, partial(self._finish, flight))

    def _finish(self, flight: Flight) -> None:
        self._num_open -= 1
        num_tokens = len(flight.text_arrivals_s)
        self._samples.append(
            Sample(
                number=flight.number,
                start_s=flight.start_s,
                end_s=self._clock.now_s,
                text_arrivals_s=tuple(flight.text_arrivals_s),
                packets=tuple(flight.packets),
                prompt_tokens=flight.works[0].prompt,
                completion_tokens=sum(work.outputs for work in flight.works),
                text_tokens=num_tokens,
            )
        )
        flight.ended()

    def _outcome(self, load: Load, start_s: float) -> Outcome:
        duration_s = max((one.end_s for one in self._samples), default=start_s) - start_s
        shifted = [
            one.model_copy(update={"start_s": one.start_s - start_s, "end_s": one.end_s - start_s})
            for one in sorted(self._samples, key=lambda one: one.number)
        ]
        level = Level(
            concurrency=load.concurrency,
            rate=load.rate,
            duration_s=duration_s,
            client_cpu=0.0,
            samples=tuple(shifted),
        )
        stages = {
            pool[0].name: fmean(one.busy_s for one in pool) / duration_s for pool in self._pools()
        }
        devices = {name: one.busy_s / duration_s for name, one in self._devices.items()}
        return Outcome(level, devices, stages, self._gateway_busy_s / duration_s)


def _always(_: Flight) -> bool:
    return True


def _nothing() -> None:
    pass
