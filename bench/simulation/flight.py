"""A simulated request on its way through the stages."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from omnistage.bench.metrics import Packet


@dataclass(slots=True, eq=False)
class Work:
    """What one writer has to do for a request, and how far it is.

    `source`: the work whose outputs it reads, one a step; None at the entry. `read`: tokens of the
    prompt. `made`: outputs that have left, `lag` steps after the first ones were computed.
    """

    prompt: int
    outputs: int
    source: "Work | None" = None
    lag: int = 0
    read: int = 0
    steps: int = 0
    made: int = 0
    is_done: bool = False

    def step(self) -> None:
        """One more step was computed."""
        self.steps += 1
        self.made = max(0, self.steps - self.lag)
        self.is_done = self.made >= self.outputs

    @property
    def has_input(self) -> bool:
        """Whether the next step, or the prompt, has what it reads."""
        source = self.source
        return source is None or source.is_done or source.made > self.steps


@dataclass(slots=True, eq=False)
class Flight:
    """One request. `route`: the replica of each stage. `pieces`: chunks for the decoder, with when
    they came; `cut` frames are in chunks, `decoded` ones have left as sound.
    """

    number: int
    start_s: float
    works: list[Work]
    frame_s: float
    ended: Callable[[], None]
    route: list[int] = field(default_factory=list)
    text_arrivals_s: list[float] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    pieces: deque[tuple[int, float]] = field(default_factory=deque)
    chunks: int = 0
    cut: int = 0
    decoded: int = 0

    @property
    def outstanding(self) -> int:
        """Chunks for which the decoder has not given credit back."""
        return len(self.pieces)
