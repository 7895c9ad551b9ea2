"""One request's call of a pipeline, in a greenlet of the engine's thread."""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from diffusers import DiffusionPipeline, SchedulerMixin
from greenlet import getcurrent

from omnistage.stages.device.memory import is_out_of_memory, release_cached
from omnistage.stages.diffusion.engine.foresight import Foresight
from omnistage.stages.diffusion.engine.hidden_state import HiddenState
from omnistage.stages.diffusion.engine.side_lane import Errand
from omnistage.stages.diffusion.engine.step_count import StepCount
from omnistage.stages.diffusion.engine.switchboard import RequestGreenlet
from omnistage.stages.diffusion.merging.calls import Call, Target
from omnistage.stages.diffusion.merging.setting import DEFAULT, Setting
from omnistage.stages.diffusion.merging.stopping import Cancellation, Cancelled, Stopped, stoppable
from omnistage.stages.diffusion.merging.targets import (
    CallOutcome,
    Denoiser,
    without_frames,
)
from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.pipeline import Arguments, Pipeline

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Job:
    """One pipeline call; its result is the call's own."""

    number: int
    pipeline: Pipeline
    arguments: Mapping[str, object]
    setting: Setting = DEFAULT
    direct: Sequence[str] = ()  # parts of the pipeline that it calls without the engine
    steps: StepCount | None = None  # if its pipeline reports none
    result: "Future[Any]" = field(default_factory=Future)
    call: Call | None = None  # what it waits for
    errand: Errand | None = None  # if that is in a side lane
    waits_since: int = 0  # the forward after which it began to wait
    stop: Cancellation = field(default_factory=Cancellation)
    foresight: Foresight = field(default_factory=Foresight)
    on_wait: Callable[[], None] = lambda: None  # the engine's thread served others before it
    _run: RequestGreenlet | None = None
    _state: HiddenState | None = None

    @property
    def waiting(self) -> Call:
        """The call that it waits for."""
        assert self.call is not None, "the job waits for nothing"
        return self.call

    @property
    def is_ended(self) -> bool:
        """Returns whether the pipeline call is over; its result is set."""
        return self._run is None

    @property
    def is_cancelled(self) -> bool:
        """Returns whether nobody waits for its result any more."""
        return self.stop.is_set

    def cancel(self) -> None:
        """From any thread: what is computed for it alone ends at its next module."""
        self.stop.is_set = True

    @property
    def has_hidden_state(self) -> bool:
        """Returns whether hooks keep something for it between its steps."""
        return bool(self._state) and self.setting.has_step_cache

    def start(self, state: HiddenState) -> None:
        """Run to the first call that waits."""
        self._state = state
        self._run = RequestGreenlet(self._call_pipeline)
        self._run.setting = self.setting
        self._run.stop = self.stop
        self._enter(self.pipeline)

    def resume(self, outcome: CallOutcome) -> None:
        """Run to the next call that waits, with this one's result or error."""
        if self.steps is not None and isinstance(self.waiting.target, Denoiser):
            self.steps.called()
        self._enter(outcome)

    def end(self) -> None:
        """Cancel it."""
        self._enter(CallOutcome(error=Cancelled()))

    def put_state(self) -> None:
        """Let the hooks work for this request."""
        if self._state is not None:
            self._state.put()

    def _enter(self, value: object) -> None:
        assert self._run is not None, "a job that is over was resumed"
        self.put_state()
        for name in self.direct:
            self.setting.put(name)
        modes = TorchModes.now()
        self.call, self.errand = None, None
        with stoppable([self.stop]):  # for parts that it runs without the engine
            self.call = self._run.switch(value)
        modes.set()
        if self._run.dead:
            self._run, self._state, self.call = None, None, None

    def _call_pipeline(self, pipeline: Pipeline) -> None:
        own = _own(pipeline, self.steps, {})
        try:
            self.result.set_result(own(**self.arguments))
            return
        except (Cancelled, Stopped):
            failure: Exception = CancelledError()
        except Exception as error:  # noqa: BLE001 - it is the request's, whatever it is
            failure = without_frames(error)
        if is_out_of_memory(failure):
            release_cached()
        self.result.set_exception(failure)


def _own(pipeline: Pipeline, steps: StepCount | None, memo: dict[int, object]) -> Pipeline:
    """A pipeline over the same modules with schedulers of its own, counted if they are to be.

    So are those of pipelines that it is made of. `memo`: copies so far; one scheduler may have
    several names.
    """
    own = copy.copy(pipeline)
    for name, part in vars(own).items():
        if isinstance(part, DiffusionPipeline):
            vars(own)[name] = _own(part, steps, memo)
        elif isinstance(part, SchedulerMixin) or (name == "scheduler" and part is not None):
            is_new = id(part) not in memo
            vars(own)[name] = made = copy.deepcopy(part, memo)
            if is_new and steps is not None:
                steps.watch(made)
    return own


def wait_for_turn(target: Target, args: Sequence[object], kwargs: Arguments) -> object:
    """In a request's greenlet, instead of a module's method: the engine makes the call."""
    current = getcurrent()
    engine = current.parent
    assert isinstance(current, RequestGreenlet), "only requests wait for turns"
    assert engine is not None, "a request runs outside of the engine"
    call = replace(target.call(args, kwargs), setting=current.setting, stop=current.stop)
    outcome: CallOutcome = engine.switch(call)
    call.modes.set()
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


async def awaited(future: "Future[T]") -> T:
    """A future of another thread; ours may be cancelled, that one goes on, for nobody."""
    ours = asyncio.wrap_future(future)
    ours.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is retrieved
    return await asyncio.shield(ours)
