"""The stages of a simulation: each replica takes its next batch as soon as the last has ended."""

from collections import defaultdict, deque
from collections.abc import Callable

from omnistage.bench.simulation.clock import Clock, Devices
from omnistage.bench.simulation.flight import Flight, Work
from omnistage.bench.simulation.model import Curve, Decoder, Edge, Writer

Tell = Callable[[Flight], None]


class Replica:
    """What replicas of all stages count: their requests, and the time of their batches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_open = 0
        self.busy_s = 0.0


class WriterReplica(Replica):
    """A batch is a row of every request that has its input, and prompts as far as tokens allow.

    `wrote` is told of each request of a step. `may_write`: whether a request's outputs may leave.
    """

    def __init__(
        self,
        spec: Writer,
        index: int,
        devices: Devices,
        share: Curve,
        wrote: Tell,
        may_write: Callable[[Flight], bool],
    ) -> None:
        super().__init__(spec.name)
        self.spec = spec
        self._index = index
        self._devices = devices
        self._share = share
        self._wrote = wrote
        self._may_write = may_write
        self._queue: deque[Flight] = deque()
        self._seated: list[Flight] = []
        self._is_busy = False

    def put(self, flight: Flight) -> None:
        """A request, whose input may still have to come."""
        self._queue.append(flight)
        self.wake()

    def _work(self, flight: Flight) -> Work:
        return flight.works[self._index]

    def wake(self) -> None:
        """Begin the next step, if there is anything to do."""
        if self._is_busy:
            return
        rows = [one for one in self._seated if self._is_ready(one)]
        prompts = self._prompts(self.spec.max_tokens - len(rows))
        if not rows and not prompts:
            return
        num_tokens = sum(prompts.values())
        seconds = self.spec.time(len(rows), num_tokens)
        self._is_busy = True
        self.busy_s += seconds
        share = self._share.at(len(rows) + num_tokens)
        self._devices.compute(seconds, share, lambda: self._end(rows, prompts))

    def _is_ready(self, flight: Flight) -> bool:
        work = self._work(flight)
        return work.read == work.prompt and work.has_input and self._may_write(flight)

    def _prompts(self, room: int) -> dict[Flight, int]:
        """Tokens of prompts in the next step: of those that have begun, then of the queue."""
        taken: dict[Flight, int] = {}
        for flight in self._seated:
            work = self._work(flight)
            if work.read < work.prompt and room:
                taken[flight] = min(room, work.prompt - work.read)
                room -= taken[flight]
        while self._queue and room and len(self._seated) < self.spec.seats:
            first = next((one for one in self._queue if self._work(one).has_input), None)
            if first is None:
                break
            self._queue.remove(first)
            self._seated.append(first)
            taken[first] = min(room, self._work(first).prompt)
            room -= taken[first]
        return taken

    def _end(self, rows: list[Flight], prompts: dict[Flight, int]) -> None:
        for flight, num_tokens in prompts.items():
            self._work(flight).read += num_tokens
        read = [one for one in prompts if self._work(one).read == self._work(one).prompt]
        self._is_busy = False
        for flight in (*rows, *read):
            work = self._work(flight)
            work.step()
            if work.is_done:
                self._seated.remove(flight)
                self.num_open -= 1
        for flight in (*rows, *read):
            self._wrote(flight)
        self.wake()


class DecoderReplica(Replica):
    """A batch is one length of pieces: the most urgent one and others of that length.

    A piece is due when it came, and its own length later, as in the decoder's engine.
    """

    def __init__(
        self,
        spec: Decoder,
        clock: Clock,
        devices: Devices,
        share: Curve,
        decoded: Callable[[Flight, int], None],
    ) -> None:
        super().__init__(spec.name)
        self.spec = spec
        self._clock = clock
        self._devices = devices
        self._share = share
        self._decoded = decoded
        self._waiting: dict[Flight, None] = {}
        self._is_busy = False

    def put(self, flight: Flight, frames: int) -> None:
        """A chunk of frames of a request."""
        flight.pieces.append((frames, self._clock.now_s))
        self._waiting[flight] = None
        self.wake()

    def wake(self) -> None:
        """Begin the next batch, if there is anything to do."""
        if self._is_busy or not self._waiting:
            return
        by_length: dict[int, list[Flight]] = defaultdict(list)
        for flight in self._waiting:
            by_length[flight.pieces[0][0]].append(flight)
        frames, flights = min(by_length.items(), key=lambda one: min(map(_due_s, one[1])))
        batch = sorted(flights, key=_due_s)[: max(1, self.spec.batch_frames // frames)]
        self._is_busy = True
        seconds = self.spec.time(frames, len(batch))
        self.busy_s += seconds
        self._devices.compute(
            seconds, self._share.at(frames * len(batch)), lambda: self._end(batch)
        )

    def _end(self, batch: list[Flight]) -> None:
        self._is_busy = False
        for flight in batch:
            frames, _ = flight.pieces.popleft()
            if not flight.pieces:
                del self._waiting[flight]
            self._decoded(flight, frames)
        self.wake()


def _due_s(flight: Flight) -> float:
    frames, came_s = flight.pieces[0]
    return came_s + frames * flight.frame_s


def cut(flight: Flight, edge: Edge) -> list[int]:
    """Chunks of frames that are whole now; the last one when the last frame is there."""
    work, found = flight.works[-1], list[int]()
    if work.made - flight.cut < edge.size(flight.chunks) and not work.is_done:
        return found
    while flight.cut < work.made:
        size = edge.size(flight.chunks)
        rest = work.made - flight.cut
        if rest < size and not work.is_done:
            break
        found.append(min(size, rest))
        flight.cut += found[-1]
        flight.chunks += 1
    return found
