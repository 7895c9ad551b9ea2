"""What is simulated: a cell's stages with the measured times of their batches. Times are seconds.

A cell is one gateway and the stages that it owns. Its stages are a chain: writers, each of which
reads what the one before writes, and perhaps a decoder at the end, which makes the sound.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from random import Random


@dataclass(frozen=True, slots=True)
class Curve:
    """Times by size, as measured: (size, seconds), rising sizes.

    Linear between two points and beyond the last; below the first as the first.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, size: float) -> float:
        """The time of a size."""
        if len(self.points) == 1 or size <= self.points[0][0]:
            return self.points[0][1]
        place = bisect_left(self.points, size, 1, len(self.points) - 1, key=lambda one: one[0])
        (low, start_s), (high, end_s) = self.points[place - 1], self.points[place]
        return start_s + (end_s - start_s) * (size - low) / (high - low)

    def scaled(self, factor: float) -> "Curve":
        """Every time longer by a factor."""
        return Curve(tuple((size, seconds * factor) for size, seconds in self.points))


@dataclass(frozen=True, slots=True)
class Writer:
    """A stage that writes a token, or a frame, a step for every request with a seat.

    `step`: a step by its tokens, one for each row; `prompt`: what tokens of prompts add to that.
    `replicas`: the devices of each, on which a step computes at once. `lag`: steps whose output
    leaves with a later one. `is_text`: each output is text for the client.
    """

    name: str
    replicas: tuple[tuple[str, ...], ...]
    seats: int
    step: Curve
    prompt: Curve
    max_tokens: int = 2048
    lag: int = 0
    is_text: bool = False

    def time(self, rows: int, prompt_tokens: int) -> float:
        """Of a step with both. A prompt reads the weights that its step's rows read anyway.

        So it counts as rows up to the most that were measured, where all weights are read.
        """
        if not prompt_tokens:
            return self.step.at(rows)
        most = self.step.points[-1][0]
        size = max(rows, min(rows + prompt_tokens, most))
        return self.step.at(size) + self.prompt.at(prompt_tokens)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A stage that makes sound of pieces, those of one length together.

    `replicas`: the devices of each. `decode`: by the frames of a piece, a batch by its rows.
    `batch_frames`: of all pieces of a batch.
    """

    name: str
    replicas: tuple[tuple[str, ...], ...]
    decode: Mapping[int, Curve]
    batch_frames: int = 400

    def time(self, frames: int, rows: int) -> float:
        """Of a batch of so many pieces with so many frames each."""
        known = sorted(self.decode)
        return Curve(tuple((one, self.decode[one].at(rows)) for one in known)).at(frames)


@dataclass(frozen=True, slots=True)
class Edge:
    """What joins the last writer with the decoder: sizes of chunks, and the credit window."""

    chunks: tuple[int, ...] = (1,)
    credit: int = 8

    def size(self, number: int) -> int:
        """Frames of a request's chunk `number`; the last size repeats."""
        return self.chunks[min(number, len(self.chunks) - 1)]


@dataclass(frozen=True, slots=True)
class Gateway:
    """The process before the stages, which has one core.

    `event_s`: of that core for an event to a client. `before_s`: from a request to its first stage;
    `after_s`: from an output to the client. `max_requests`: in flight; others are refused.
    """

    event_s: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0
    max_requests: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Cell:
    """One gateway with its stages.

    `share`: what a batch takes of its device while it runs, by its rows. Batches that run at the
    same time on one device take longer by the sum of their shares, if that is more than 1.
    """

    writers: tuple[Writer, ...]
    decoder: Decoder | None = None
    edge: Edge = Edge()
    gateway: Gateway = Gateway()
    share: Curve = Curve(((1, 1.0),))


@dataclass(frozen=True, slots=True)
class Length:
    """A log-normal distribution of whole numbers of at least 1; always the mean without `spread`.

    `spread`: the standard deviation over the mean.
    """

    mean: float
    spread: float = 0.0

    def draw(self, random: Random) -> int:
        """One of them."""
        if not self.spread:
            return max(1, round(self.mean))
        variance = log(1 + self.spread**2)
        return max(1, round(random.lognormvariate(log(self.mean) - variance / 2, sqrt(variance))))


@dataclass(frozen=True, slots=True)
class Answers:
    """What requests ask for. `frames_per_token`: frames of sound for each token of text."""

    prompt: Length
    tokens: Length
    frames_per_token: float = 0.0
    frame_s: float = 0.08
    seed: int = 0
