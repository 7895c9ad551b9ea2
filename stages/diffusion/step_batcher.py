"""Steps of concurrent, unmodified Diffusers pipeline calls, batched.

Each request runs its pipeline's own `__call__` in a greenlet of the engine's thread, on a shallow
copy of the pipeline with a scheduler of its own. The denoiser's forward switches to the engine
instead of computing; the engine puts the waiting calls that fit together into one, runs it, and
switches each request back with its rows. So requests join and leave between steps, whatever their
number of steps, seed or guidance.
"""

import copy
import inspect
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet

from omnistage.stages.diffusion.calls import Axes, bind, split

logger = logging.getLogger(__name__)

MAX_BATCH = 16  # rows of one forward
DENOISERS = ("transformer", "unet", "prior")


class Cancelled(GreenletExit):
    """Ends a request's pipeline call at its next step."""


@dataclass(eq=False, slots=True)
class Job:
    """One pipeline call; its result is the call's own."""

    number: int
    pipeline: Any
    arguments: Mapping[str, Any]
    result: "Future[Any]" = field(default_factory=Future)
    run: greenlet | None = None
    call: dict[str, Any] | None = None  # of the denoiser: what it waits for
    waits_since: int = 0  # the forward after which it began to wait
    is_cancelled: bool = False


class StepBatcher:
    """Owns a pipeline and the thread that runs it. `submit` and `cancel` are for any thread."""

    def __init__(
        self,
        pipeline: Any,
        once: Mapping[str, Any],
        twice: Mapping[str, Any],
        max_batch: int = MAX_BATCH,
    ) -> None:
        """`once`, `twice`: arguments of two short calls, the second with twice as many pictures.

        The batch axes are learned from them. Raises ValueError for a pipeline without a denoiser.
        """
        self._pipeline = pipeline
        self._name = find_denoiser(pipeline)
        self._denoiser = getattr(pipeline, self._name)
        self._forward: Callable[..., Any] = self._denoiser.forward
        self._signature = inspect.signature(self._forward)
        self._max_batch = max_batch
        self._jobs: list[Job] = []
        self._new: list[Job] = []
        self._numbers = itertools.count()
        self._num_forwards = 0
        self.batch_sizes: Counter[int] = Counter()  # forwards, by how many requests shared them
        self._pings: list[Future[None]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._axes = Axes.learn(self._first_call(once), self._first_call(twice))
        self._denoiser.forward = self._wait_for_turn
        self._thread = threading.Thread(target=self._run, name="omnistage-dit", daemon=True)
        self._thread.start()

    def submit(self, pipeline: Any = None, /, **arguments: Any) -> Job:
        """Run the pipeline, or another over the same denoiser, with these arguments."""
        job = Job(next(self._numbers), pipeline or self._pipeline, arguments)
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the engine is closed")
            self._new.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """End a request before its next step; its result raises CancelledError."""
        with self._changed:
            job.is_cancelled = True
            self._changed.notify()

    def ping(self) -> "Future[None]":
        """Done when the engine's thread is between two steps."""
        answer: Future[None] = Future()
        with self._changed:
            self._pings.append(answer)
            self._changed.notify()
        return answer

    def close(self) -> None:
        """Cancel all requests and end the thread; the pipeline is as it was."""
        with self._changed:
            self._is_closed = True
            for job in (*self._jobs, *self._new):
                job.is_cancelled = True
            self._changed.notify()
        self._thread.join()
        del self._denoiser.forward

    # The engine's thread

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._new or self._pings or self._is_closed):
                    self._changed.wait()
                new, self._new = self._new, []
                pings, self._pings = self._pings, []
                if self._is_closed and not self._jobs and not new:
                    return
            for ping in pings:
                ping.set_result(None)
            for job in new:
                self._jobs.append(job)
                job.run = greenlet(self._call_pipeline)
                self._resume(job, job)
            for job in [job for job in self._jobs if job.is_cancelled]:
                self._end(job)
            batch = self._next_batch()
            if batch:
                self._step(batch)

    def _call_pipeline(self, job: Job) -> None:
        """In the request's greenlet, from its start to its end."""
        own = copy.copy(job.pipeline)
        if getattr(own, "scheduler", None) is not None:
            own.scheduler = copy.deepcopy(own.scheduler)
        try:
            job.result.set_result(own(**job.arguments))
        except Cancelled:
            job.result.set_exception(CancelledError())
        except Exception as error:  # noqa: BLE001 - it is the request's, whatever it is
            job.result.set_exception(error)

    def _wait_for_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Instead of the denoiser's forward: gives the engine the call, returns its result."""
        engine = getcurrent().parent
        assert engine is not None, "the denoiser was called outside a request"
        return engine.switch(bind(self._signature, args, kwargs))

    def _resume(self, job: Job, value: Any) -> None:
        """Run a request until it waits for its next step, or ends."""
        assert job.run is not None
        job.call = None
        call = job.run.switch(value)
        self._note(job, call)

    def _fail(self, job: Job, error: BaseException) -> None:
        """Raise an error where a request waits; it may catch it and go on."""
        assert job.run is not None
        job.call = None
        call = job.run.throw(error)
        self._note(job, call)

    def _end(self, job: Job) -> None:
        while job in self._jobs:  # once more for a pipeline that catches everything
            self._fail(job, Cancelled())

    def _note(self, job: Job, call: Any) -> None:
        assert job.run is not None
        if job.run.dead:
            with self._changed:
                self._jobs.remove(job)
            job.run = None
            return
        job.call = call
        job.waits_since = self._num_forwards

    def _next_batch(self) -> list[Job]:
        """The calls that fit to the one that has waited longest."""
        waiting = sorted(
            (job for job in self._jobs if job.call is not None),
            key=lambda job: (job.waits_since, job.number),
        )
        if not waiting:
            return []
        first = waiting[0]
        assert first.call is not None
        if not self._axes.fits(first.call):
            return [first]
        key, batch, room = self._axes.key(first.call), [first], self._max_batch
        room -= self._axes.size(first.call)
        for job in waiting[1:]:
            assert job.call is not None
            size = self._axes.size(job.call)
            if size > room or self._axes.key(job.call) != key or not self._axes.fits(job.call):
                continue
            if self._axes.may_join(first.call, job.call):
                batch.append(job)
                room -= size
        return batch

    def _step(self, batch: list[Job]) -> None:
        """One forward; if it fails for several, each is tried alone, so that one fails alone."""
        calls = [job.call for job in batch if job.call is not None]
        self._num_forwards += 1
        self.batch_sizes[len(batch)] += 1
        try:
            results = split(
                self._forward(**self._axes.merge(calls)), [self._axes.size(call) for call in calls]
            )
        except Exception as error:  # noqa: BLE001 - a request's own, if it is alone
            if len(batch) == 1:
                self._fail(batch[0], error)
                return
            logger.warning("a step of %d requests failed; each is tried alone", len(batch))
            for job in batch:
                self._step([job])
            return
        for job, result in zip(batch, results, strict=True):
            self._resume(job, result)

    @torch.inference_mode()
    def _first_call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The denoiser's arguments in the first step of a whole pipeline call."""
        seen: list[dict[str, Any]] = []

        def note(*args: Any, **kwargs: Any) -> Any:
            seen.append(bind(self._signature, args, kwargs))
            return self._forward(*args, **kwargs)

        self._denoiser.forward = note
        try:
            self._pipeline(**arguments)
        finally:
            del self._denoiser.forward
        if not seen:
            raise ValueError(f"the pipeline did not call its {self._name}")
        return seen[0]


def find_denoiser(pipeline: Any) -> str:
    """The component that denoises; raises ValueError if the pipeline has none that we know."""
    for name in DENOISERS:
        if isinstance(getattr(pipeline, name, None), torch.nn.Module):
            return name
    raise ValueError(
        f"{type(pipeline).__name__} has no denoiser: none of {', '.join(DENOISERS)} is a module"
    )
