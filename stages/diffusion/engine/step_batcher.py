"""Steps of concurrent, unmodified Diffusers pipeline calls, batched.

Each request runs its pipeline's own `__call__` in a greenlet of the engine's thread, on a shallow
copy of the pipeline with a scheduler of its own. The denoiser's forward switches to the engine
instead of computing; the engine puts the waiting calls that fit together into one, runs it, and
switches each request back with its rows. So requests join and leave between steps, whatever their
number of steps, seed or guidance. Encoders and decoders are called the same way, but in side
lanes, so that steps do not wait for them.
"""

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch

from omnistage.stages.diffusion.blocks.compiled import is_compiled
from omnistage.stages.diffusion.engine.changed_attention import attention_kept
from omnistage.stages.diffusion.engine.compute_threads import ComputeThreads, run_here
from omnistage.stages.diffusion.engine.hidden_state import HiddenState
from omnistage.stages.diffusion.engine.job import Job, wait_for_turn
from omnistage.stages.diffusion.engine.order import Order
from omnistage.stages.diffusion.engine.side_lane import MAX_ROWS, Errand, SideLanes, lend
from omnistage.stages.diffusion.engine.speed import Speed, Stopwatch, Trials
from omnistage.stages.diffusion.engine.step_count import Report, StepCount
from omnistage.stages.diffusion.engine.switchboard import Switchboard, find_denoisers, side_targets
from omnistage.stages.diffusion.loading.components import controls_in, modules_in
from omnistage.stages.diffusion.merging.calls import Call
from omnistage.stages.diffusion.merging.learning import calls_of_two, first_calls, learn
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

logger = logging.getLogger(__name__)

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
        self._beside = beside
        self._has_room_beside = beside is not None and beside.num_groups > 1
        self._max_batch = max_batch
        self._jobs: list[Job] = []
        self._new: list[Job] = []
        self._done: list[Errand] = []
        self._passed: list[Errand] = []  # which waited in a lane while others were done
        self._pings: list[Future[None]] = []
        self._orders: list[Order[Any]] = []
        self._numbers = itertools.count()
        self._num_forwards = 0
        self._num_errands = 0
        self.num_foreseen = 0  # calls that were made beside the one before them
        self.batch_sizes: Counter[int] = Counter()  # forwards, by how many requests shared them
        self._changed = threading.Condition()
        self._is_closed = False
        self._denoisers = denoisers or find_denoisers(pipeline)
        self._controls = controls_in(pipeline)
        self._runs_one = False  # a request at a time
        self.alone_because = ""  # why no forward is shared, if none can be
        self._device = next(next(iter(self._denoisers.values())).parameters()).device
        self._switchboard = Switchboard()
        # Without lanes all is computed in the engine's thread.
        is_cpu = self._device.type == "cpu" and has_side_lanes
        self._threads = ComputeThreads() if is_cpu else None
        self._compute = run_here if self._threads is None else self._threads.run
        self.speed: Speed | None = None  # if it is measured and could be told
        targets = self._compute(partial(self._learned, once, twice, measures_speed))
        self._lanes: SideLanes | None = None
        if has_side_lanes:
            max_rows = min(MAX_ROWS, max_batch)
            self._lanes = SideLanes(self._take_back, self._device, self._compute, max_rows)
            for owner, method, component in list(side_targets(pipeline, self._stepped)):
                self._switchboard.connect(owner, method, component, wait_for_turn)
        for name, target in targets.items():
            self._switchboard.connect(self._stepped[name], "forward", target, wait_for_turn)
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
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the engine is closed")
            self._new.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """End a request; its result raises CancelledError.

        What is computed for it ends at the next module, unless others share it.
        """
        with self._changed:
            job.cancel()
            self._changed.notify()

    @property
    def progress(self) -> int | None:
        """A number that grows as long as what runs gets on; None: nothing runs."""
        is_busy = self._lanes is not None and self._lanes.is_busy
        if not (self._jobs or self._new or is_busy):
            return None
        return self._checkpoints.num_passed + self._num_forwards + self._num_errands

    def ping(self) -> "Future[None]":
        """Done when the engine's thread is between two steps."""
        answer: Future[None] = Future()
        with self._changed:
            self._pings.append(answer)
            self._changed.notify()
        return answer

    def between_steps(self, function: Callable[[], T]) -> "Future[T]":
        """Run it in the engine's thread while no part of the pipeline runs."""
        order = Order(function)
        with self._changed:
            self._orders.append(order)
            self._changed.notify()
        return order.result

    def close(self) -> None:
        """Cancel all requests and end the threads; the pipeline is as it was."""
        with self._changed:
            self._is_closed = True
            for job in (*self._jobs, *self._new):
                job.cancel()
            self._changed.notify()
        self._thread.join()
        if self._lanes is not None:
            self._lanes.close()
        if self._threads is not None:
            self._threads.close()
        self._switchboard.close()
        self._checkpoints.close()

    def _learned(
        self, once: Mapping[str, object], twice: Mapping[str, object], measures_speed: bool
    ) -> dict[str, Denoiser]:
        watch = Stopwatch(self._pipeline, self._denoisers, self._device)
        with watch.timed() as took_once, attention_kept(self._denoisers) as is_kept:
            first = first_calls(self._pipeline, self._stepped, once)
        with watch.timed() as took_twice:
            second = calls_of_two(self._pipeline, self._stepped, once, twice, first)
        warm_up = took_once()
        if measures_speed and warm_up is not None:
            self.speed = warm_up.best(took_twice())
            modules = chain(*(module.modules() for module in self._denoisers.values()))
            if not any(map(is_compiled, modules)):  # each size would be compiled
                self.speed = Trials(self._pipeline, once, watch).speed(self.speed)
        if not self._denoisers.keys() & first.keys():
            names = ", ".join(self._denoisers)
            raise ValueError(f"the pipeline did not call its denoiser: {names}")
        if not is_kept():
            self.alone_because = "a call changes the denoiser's attention: one request at a time"
            self._runs_one = True
        elif not second:
            self.alone_because = "calls for two pictures cannot be made"
        made = {}
        axes = None
        for name, module in self._stepped.items():
            if name in first and name in second:
                axes = learn(module, first[name], second[name])
            elif name in self._controls:
                axes = None
            # one that two short calls do not reach is of the same kind as the one before it
            made[name] = Denoiser(name, module.forward, axes, self._beside)
        if not any(made[name].may_merge for name in self._denoisers) and not self.alone_because:
            self.alone_because = "merged calls of the denoiser differ from single ones"
        if self.alone_because:
            logger.warning("no forwards are shared: %s", self.alone_because)
        return made

    @property
    def _stepped(self) -> dict[str, torch.nn.Module]:
        """Returns the modules that run at each step: requests share their forwards."""
        return {**self._denoisers, **self._controls}

    def _take_back(self, batch: Sequence[Errand], behind: Sequence[Errand]) -> None:
        """In a lane's thread."""
        with self._changed:
            self._done += batch
            self._passed += behind
            self._num_errands += len(batch)
            self._changed.notify()

    # The engine's thread

    @torch.inference_mode()
    def _run(self) -> None:
        while self._take_news():
            for job in [job for job in self._jobs if job.is_cancelled]:
                self._end(job)
            self._obey()
            batch = self._next_batch()
            if batch:
                self._step(batch)

    def _take_news(self) -> bool:
        """Wait until there is something to do, and begin with what came; False: all is over."""
        with self._changed:
            while not (self._has_news or self._has_steps):
                self._changed.wait()
            last = len(self._new) if not self._runs_one else int(not self._jobs)
            new, self._new = self._new[:last], self._new[last:]
            pings, self._pings = self._pings, []
            done, self._done = self._done, []
            passed, self._passed = self._passed, []
            if self._is_closed and not self._jobs and not (new or self._new):
                return False
        for ping in pings:
            ping.set_result(None)
        for job in new:
            self._begin(job)
        for errand in done:
            self._deliver(errand)
        self._run_sent()
        for job in self._jobs if passed else ():
            if job.errand in passed:
                job.on_wait()
        return True

    def _obey(self) -> None:
        with self._changed:
            orders, self._orders = self._orders, []
        for order in orders:
            with nullcontext() if self._lanes is None else self._lanes.held():
                self._compute(order.obey)

    def _begin(self, job: Job) -> None:
        if job.is_cancelled:
            job.result.set_exception(CancelledError())
            return
        with self._changed:
            self._jobs.append(job)
        job.start(HiddenState(self._denoisers.values()))
        self._note(job)

    @property
    def _has_news(self) -> bool:
        return bool(
            (self._new and not (self._runs_one and self._jobs))
            or self._pings
            or self._orders
            or self._done
            or self._is_closed
            or any(job.is_cancelled for job in self._jobs)
        )

    @property
    def _has_steps(self) -> bool:
        return any(job.errand is None for job in self._jobs)

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
            with self._changed:
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
        with self._changed:
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
