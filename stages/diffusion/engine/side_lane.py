"""Where encoders and decoders run while denoising goes on.

Encoders have a lane and decoders have one, so that neither waits for the other: each is a
thread and, on CUDA, a stream.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from omnistage.stages.diffusion.engine.compute_threads import Run, run_here
from omnistage.stages.diffusion.merging.calls import Call, tensors_in
from omnistage.stages.diffusion.merging.targets import CallOutcome, Component, joined, outcomes

logger = logging.getLogger(__name__)

MAX_ROWS = 4  # of one call: a decoder of large pictures needs much memory for each


@dataclass(eq=False, slots=True)
class Errand:
    """A call on its way through the lane. `ready`: when its arguments are, on CUDA."""

    call: Call
    ready: torch.Event | None = None
    outcome: CallOutcome = field(default_factory=CallOutcome)
    is_cancelled: bool = False


class OnDone(Protocol):
    """Gets what ran as one, and what waited in the lane meanwhile; called in the lane's thread."""

    def __call__(self, batch: Sequence[Errand], behind: Sequence[Errand]) -> None: ...


class SideLanes:
    """The lane of encoders, and that of what decodes: each module's calls are in one of them."""

    def __init__(
        self,
        on_done: OnDone,
        device: torch.device,
        run: Run = run_here,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """`run` makes the calls."""
        self._encoders, self._decoders = self._lanes = [
            SideLane(f"omnistage-{name}", on_done, device, run, max_rows)
            for name in ("encoders", "decoders")
        ]

    def send(self, call: Call) -> Errand:
        """Sends to the lane of the call."""
        decodes = isinstance(call.target, Component) and call.target.decodes
        return (self._decoders if decodes else self._encoders).send(call)

    def run_sent(self) -> None:
        """Let all that was sent begin."""
        for lane in self._lanes:
            lane.run_sent()

    def cancel(self, errand: Errand) -> None:
        """Nobody waits for it any more: it does not begin, or its end is not told."""
        for lane in self._lanes:
            lane.cancel(errand)

    @property
    def is_busy(self) -> bool:
        """Returns whether a call runs."""
        return any(lane.busy.locked() for lane in self._lanes)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, no call runs."""
        with ExitStack() as stack:
            for lane in self._lanes:
                stack.enter_context(lane.busy)
            yield

    @property
    def batch_sizes(self) -> Counter[int]:
        """Calls, by how many requests shared them."""
        return sum((lane.batch_sizes for lane in self._lanes), Counter[int]())

    def close(self) -> None:
        """End the threads after the calls that run."""
        for lane in self._lanes:
            lane.close()


class SideLane:
    """Runs calls in the order in which they come, those that fit together as one."""

    def __init__(
        self,
        name: str,
        on_done: OnDone,
        device: torch.device,
        run: Run,
        max_rows: int,
    ) -> None:
        """`name`: its thread's."""
        self._on_done = on_done
        self._run_calls = run
        self._max_rows = max_rows
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._sent: list[Errand] = []  # which wait for more that is sent with them
        self._waiting: list[Errand] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self.busy = threading.Lock()  # held while calls run
        self.batch_sizes: Counter[int] = Counter()  # calls, by how many requests shared them
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, call: Call) -> Errand:
        """From the engine's thread: what its stream has in work for the call is waited for.

        It begins at the next `run_sent`, so that calls which are sent together can be one.
        """
        errand = Errand(call)
        if self._stream is not None:
            errand.ready = torch.cuda.current_stream().record_event()
        with self._changed:
            self._sent.append(errand)
        return errand

    def run_sent(self) -> None:
        """Let all that was sent begin."""
        with self._changed:
            if self._sent:
                self._waiting += self._sent
                self._sent.clear()
                self._changed.notify()

    def cancel(self, errand: Errand) -> None:
        """Nobody waits for it any more: it does not begin, or its end is not told."""
        with self._changed:
            errand.is_cancelled = True
            for errands in (self._sent, self._waiting):
                if errand in errands:
                    errands.remove(errand)

    def close(self) -> None:
        """End the thread after the call that runs."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
                chosen = joined([errand.call for errand in self._waiting], self._max_rows)
                batch = [self._waiting[index] for index in chosen]
                self._waiting = [one for one in self._waiting if one not in batch]
            self.batch_sizes[len(batch)] += 1
            with self.busy, self._on_stream(batch):
                calls = [errand.call for errand in batch]
                done = self._run_calls(partial(outcomes, calls, self._finish))
            for errand, outcome in zip(batch, done, strict=True):
                errand.outcome = outcome
            with self._changed:
                behind = list(self._waiting)
            self._on_done(batch, behind)

    @contextmanager
    def _on_stream(self, batch: list[Errand]) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            for errand in batch:
                assert errand.ready is not None, "sent without its event"
                self._stream.wait_event(errand.ready)
            yield

    def _finish(self) -> None:
        """Wait for the device here, so that no stream of the engine has to."""
        if self._stream is not None:
            self._stream.synchronize()


def lend(value: object, stream: torch.Stream) -> None:
    """Tell CUDA's allocator that the lane's results are used on another stream."""
    for tensor in tensors_in(value):
        if tensor.is_cuda:
            tensor.record_stream(stream)
