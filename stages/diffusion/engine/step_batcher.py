"""Steps of concurrent, unmodified Diffusers pipeline calls, batched.

Each request runs its pipeline's own `__call__` in a greenlet of the engine's thread, on a shallow
copy of the pipeline with a scheduler of its own. The denoiser's forward switches to the engine
instead of computing; the engine puts the waiting calls that fit together into one, runs it, and
switches each request back with its rows. So requests join and leave between steps, whatever their
number of steps, seed or guidance. Encoders and decoders are called the same way, but in side
lanes, so that steps do not wait for them.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from omnistage.stages.diffusion.engine.compute_threads import ComputeThreads, run_here
from omnistage.stages.diffusion.engine.hidden_state import HiddenState
from omnistage.stages.diffusion.engine.inbox import Arrivals, Inbox
from omnistage.stages.diffusion.engine.job import Job, wait_for_turn
from omnistage.stages.diffusion.engine.side_lane import MAX_ROWS, Errand, SideLanes, lend
from omnistage.stages.diffusion.engine.step_count import Report, StepCount
from omnistage.stages.diffusion.engine.switchboard import Switchboard, find_denoisers, side_targets
from omnistage.stages.diffusion.engine.warm_up import WarmUp
from omnistage.stages.diffusion.loading.components import modules_in
from omnistage.stages.diffusion.merging.calls import Call
from omnistage.stages.diffusion.merging.setting import DEFAULT, Setting
from omnistage.stages.diffusion.merging.stopping import Checkpoints
from omnistage.stages.diffusion.merging.targets import (
    Beside,
    CallOutcome,
    Denoiser,
    joined,
    outcomes,
)
from omnistage.stages.diffusion.pipeline import Pipeline

T = TypeVar("T")

MAX_BATCH = 16  # rows of one forward


class StepBatcher:
    """Owns a pipeline and the threads that run it. `submit` and `cancel` are for any thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        once: Mapping[str, object],
        twice: Mapping[str, object],
        max_batch: int = MAX_BATCH,
        has_side_lanes: bool = True,
        denoisers: Mapping[str, torch.nn.Module] | None = None,
        measures_speed: bool = False,
        beside: Beside | None = None,
    ) -> None:
        """`once`, `twice`: arguments of two short calls, the second with twice as many pictures.

        How calls may be merged is learned from them. Without side lanes encoders and decoders run
        between steps: for modules that cannot be on the device together. `denoisers`: by dotted
        name; None: those that are found. To measure its `speed` takes a few more short calls.
        `beside`: ranks among which the rows of a forward are divided. Raises ValueError for a
        pipeline without a denoiser.
        """
        self._pipeline = pipeline
        self._has_room_beside = beside is not None and beside.num_groups > 1
        self._max_batch = max_batch
        self._jobs: list[Job] = []
        self._inbox = Inbox()
        self._numbers = itertools.count()
        self._num_forwards = 0
        self.num_foreseen = 0  # calls that were made beside the one before them
        self.batch_sizes: Counter[int] = Counter()  # forwards, by how many requests shared them
        self._denoisers = denoisers or find_denoisers(pipeline)
        self._device = next(next(iter(self._denoisers.values())).parameters()).device
        self._switchboard = Switchboard()
        # Without lanes all is computed in the engine's thread.
        is_cpu = self._device.type == "cpu" and has_side_lanes
        self._threads = ComputeThreads() if is_cpu else None
        self._compute = run_here if self._threads is None else self._threads.run
        warm_up = WarmUp(pipeline, self._denoisers, once, twice, beside)
        self.learned = self._compute(partial(warm_up.run, self._device, measures_speed))
        stepped = warm_up.stepped
        self._lanes: SideLanes | None = None
        if has_side_lanes:
            max_rows = min(MAX_ROWS, max_batch)
            self._lanes = SideLanes(self._inbox.take_back, self._device, self._compute, max_rows)
            for owner, method, component in list(side_targets(pipeline, stepped)):
                self._switchboard.connect(owner, method, component, wait_for_turn)
        for name, target in self.learned.targets.items():
            self._switchboard.connect(stepped[name], "forward", target, wait_for_turn)
        parts = [*self._denoisers.values(), *(part for _, part in modules_in(pipeline))]
        self._checkpoints = Checkpoints(parts, self._device)
        self._thread = threading.Thread(target=self._run, name="omnistage-dit", daemon=True)
        self._thread.start()

    @property
    def lane_batch_sizes(self) -> Counter[int]:
        """Calls in the side lanes, by how many requests shared them."""
        return Counter() if self._lanes is None else self._lanes.batch_sizes

    def submit(
        self,
        pipeline: Pipeline | None = None,
        setting: Setting = DEFAULT,
        on_step: Report | None = None,
        /,
        **arguments: object,
    ) -> Job:
        """Run the pipeline, or another over the same modules, with these arguments.

        `on_step`: gets its steps in the engine's thread, for pipelines that report none.
        """
        pipeline = pipeline or self._pipeline
        direct = list(pipeline.components) if self._lanes is None else []
        steps = None if on_step is None else StepCount(on_step)
        job = Job(next(self._numbers), pipeline, arguments, setting, direct, steps)
        self._inbox.submit(job)
        return job

    def cancel(self, job: Job) -> None:
        """End a request; its result raises CancelledError.

        What is computed for it ends at the next module, unless others share it.
        """
        self._inbox.cancel([job])

    @property
    def progress(self) -> int | None:
        """A number that grows as long as what runs gets on; None: nothing runs."""
        is_busy = self._lanes is not None and self._lanes.is_busy
        if not (self._jobs or self._inbox.jobs or is_busy):
            return None
        return self._checkpoints.num_passed + self._num_forwards + self._inbox.num_done

    def ping(self) -> "Future[None]":
        """Done when the engine's thread is between two steps."""
        return self._inbox.ping()

    def between_steps(self, function: Callable[[], T]) -> "Future[T]":
        """Run it in the engine's thread while no part of the pipeline runs."""
        return self._inbox.order(function)

    def close(self) -> None:
        """Cancel all requests and end the threads; the pipeline is as it was."""
        with self._inbox.changed:
            self._inbox.close()
            self._inbox.cancel(self._jobs)
        self._thread.join()
        if self._lanes is not None:
            self._lanes.close()
        if self._threads is not None:
            self._threads.close()
        self._switchboard.close()
        self._checkpoints.close()

    # The engine's thread

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            arrivals = self._inbox.take(lambda: self._is_busy, lambda: self._room)
            if self._inbox.is_closed and not (self._jobs or arrivals.jobs or self._inbox.jobs):
                return
            self._take(arrivals)
            for job in [job for job in self._jobs if job.is_cancelled]:
                self._end(job)
            for order in arrivals.orders:
                with nullcontext() if self._lanes is None else self._lanes.held():
                    self._compute(order.obey)
            batch = self._next_batch()
            if batch:
                self._step(batch)

    def _take(self, arrivals: Arrivals) -> None:
        """Begin with what came."""
        for ping in arrivals.pings:
            ping.set_result(None)
        for job in arrivals.jobs:
            self._begin(job)
        for errand in arrivals.done:
            self._deliver(errand)
        self._run_sent()
        for job in self._jobs if arrivals.passed else ():
            if job.errand in arrivals.passed:
                job.on_wait()

    def _begin(self, job: Job) -> None:
        if job.is_cancelled:
            job.result.set_exception(CancelledError())
            return
        with self._inbox.changed:
            self._jobs.append(job)
        job.start(HiddenState(self._denoisers.values()))
        self._note(job)

    @property
    def _is_busy(self) -> bool:
        """Returns whether requests wait for a step, or for their end."""
        return any(job.errand is None or job.is_cancelled for job in self._jobs)

    @property
    def _room(self) -> int:
        """Returns how many requests may begin now."""
        return int(not self._jobs) if self.learned.runs_one else len(self._inbox.jobs)

    def _deliver(self, errand: Errand) -> None:
        job = next((job for job in self._jobs if job.errand is errand), None)
        if job is None:  # it was cancelled meanwhile
            return
        if self._device.type == "cuda":
            lend(errand.outcome.value, torch.cuda.current_stream(self._device))
        job.resume(errand.outcome)
        self._note(job)

    def _note(self, job: Job) -> None:
        """A request waits again, or has ended."""
        if job.is_ended:
            with self._inbox.changed:
                self._jobs.remove(job)
            return
        job.waits_since = self._num_forwards
        if self._lanes is not None and not isinstance(job.waiting.target, Denoiser):
            job.errand = self._lanes.send(job.waiting)
        elif job.has_hidden_state:
            job.call = replace(job.waiting, key=None)

    def _end(self, job: Job) -> None:
        while not job.is_ended:  # once more for a pipeline that catches everything
            if job.errand is not None and self._lanes is not None:
                self._lanes.cancel(job.errand)
            job.end()
        with self._inbox.changed:
            self._jobs.remove(job)

    def _next_batch(self) -> list[Job]:
        """The calls that fit to the one that has waited longest: so no group starves another."""
        waiting = sorted(
            (job for job in self._jobs if job.errand is None),
            key=lambda job: (job.waits_since, job.number),
        )
        if not waiting:
            return []
        chosen = joined([job.waiting for job in waiting], self._max_batch)
        return [waiting[index] for index in chosen]

    def _step(self, batch: list[Job]) -> None:
        """One forward."""
        self._num_forwards += 1
        self.batch_sizes[len(batch)] += 1
        batch[0].put_state()
        calls = [job.waiting for job in batch]
        guess = self._guessed(batch)
        done = self._compute(partial(outcomes, [*calls, *guess]))
        for job, outcome in zip(batch, done, strict=False):
            job.resume(outcome)
            self._note(job)
        for call, outcome in zip(guess, done[len(batch) :], strict=True):
            self._use_guessed(batch[0], call, outcome)
        self._run_sent()
        for job in self._jobs:
            if job.errand is None and job not in batch:
                job.on_wait()

    def _run_sent(self) -> None:
        """Once all requests that can go on have: what several of them sent can be one call."""
        if self._lanes is not None:
            self._lanes.run_sent()

    def _guessed(self, batch: list[Job]) -> list[Call]:
        """The call that will follow a request's own, for ranks that would have nothing to do."""
        if not (self._has_room_beside and isinstance(batch[0].waiting.target, Denoiser)):
            return []
        is_alone = len(batch) == 1 and batch[0].waiting.size == 1
        guess = batch[0].foresight.guess(batch[0].waiting) if is_alone else None
        for job in batch:
            job.foresight.see(job.waiting)
        return [] if guess is None else [guess]

    def _use_guessed(self, job: Job, guess: Call, outcome: CallOutcome) -> None:
        """Uses a result that was computed ahead; drops it if another call comes."""
        if job.is_ended or job.errand is not None or outcome.error is not None:
            return
        if job.foresight.is_right(guess, job.waiting):
            self.num_foreseen += 1
            job.foresight.see(job.waiting)
            job.resume(outcome)
            self._note(job)
