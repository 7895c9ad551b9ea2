"""vLLM's schedulers with one more reason not to run a request: its next input has not come.

Selected by the engine argument `scheduler_cls`. While `schedule` runs, held requests are out of
`running` and the limits on running requests are lower by their number, so that no other request
is admitted in their place.

A request whose prompt has come in part may run that part. For such a step the limit on its tokens
is the part's length, and the request is the last of `running`: the others get their tokens first,
and it cannot get more than has come.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from omnistage.stages.vllm.bridge.prefill_part import PrefillPart
from omnistage.stages.vllm.step.step import OVERDUE

IDLE_WAIT_S = 0.002
LIMITS = ("max_num_running_reqs", "max_num_active_reqs")  # the second since vLLM 0.32
# Before vLLM 0.32 a request that was not ready when it was first looked at waits in the second.
QUEUES = ("waiting", "skipped_waiting")


class GatedScheduler(Scheduler):
    """For engines without async scheduling."""

    running: list[Request]
    max_num_scheduled_tokens: int

    def schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        output = self._schedule(*args, **kwargs)
        gate = self.connector.scheduler_half
        if output.scheduled_new_reqs or output.finished_req_ids:
            pool = self.kv_cache_manager.block_pool
            in_use = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one is a null block
            gate.count_blocks(in_use)
        is_full = len(self.running) >= self.max_num_running_reqs
        gate.count_waiting(sum(map(len, self._waiting())) if is_full else 0)
        return output

    def _waiting(self) -> list[RequestQueue]:
        """The queues in which requests wait to be run."""
        return [queue for name in QUEUES if (queue := getattr(self, name, None))]

    def _schedule(self, *args: object, **kwargs: object) -> SchedulerOutput:
        gate = self.connector.scheduler_half
        gate.collect()
        running, waiting = self.running, self._waiting()
        part = self._choose_part()
        held = gate.held(running)
        if not held and part is None and (running or not waiting):
            return super().schedule(*args, **kwargs)
        if len(held) == len(running) and not gate.is_any_ready(chain.from_iterable(waiting)):
            in_flight = any(request.num_output_placeholders for request in held)
            if not in_flight and not self.finished_req_ids:
                gate.wait(IDLE_WAIT_S)
        with self._without(held), self._limited_to(part):
            return super().schedule(*args, **kwargs)

    def _choose_part(self) -> PrefillPart | None:
        """A request may begin early only while less than half of the seats are taken."""
        num_taken, num_seats = len(self.running), self.max_num_running_reqs
        waiting = self._waiting() if num_taken < num_seats else []
        part: PrefillPart | None = self.connector.scheduler_half.choose_part(
            self.running, chain.from_iterable(waiting), 2 * num_taken < num_seats
        )
        return part

    @contextmanager
    def _without(self, held: list[Request]) -> Iterator[None]:
        """Held requests are no part of `running` meanwhile, and nobody gets their seats."""
        held_ids = {request.request_id for request in held}
        self.running = [r for r in self.running if r.request_id not in held_ids]
        limits = [name for name in LIMITS if hasattr(self, name)]
        for name in limits:
            setattr(self, name, getattr(self, name) - len(held))
        try:
            yield
        finally:
            self.running = held + self.running
            for name in limits:
                setattr(self, name, getattr(self, name) + len(held))

    @contextmanager
    def _limited_to(self, part: PrefillPart | None) -> Iterator[None]:
        """Within a step that runs a part: no more tokens than it has, and others before it."""
        if part is None:
            yield
            return
        self.running.sort(key=lambda request: request.request_id == part.request_id)
        limit = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = part.num_tokens
        try:
            yield
        finally:
            self.max_num_scheduled_tokens = limit

    def add_request(self, request: Request) -> None:
        self.connector.scheduler_half.expect(request)
        super().add_request(request)

    def update_from_output(self, *args: object, **kwargs: object) -> dict[int, EngineCoreOutputs]:
        """Updates like the scheduler; requests whose input is overdue end here, as aborted ones
        do.
        """
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)
        for request_id in self.connector.scheduler_half.overdue():
            request = self.requests.get(request_id)
            if request is None or request.num_output_placeholders:
                continue  # ended, or in a step: the next look finds it again
            self.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            told = outputs.setdefault(request.client_index, EngineCoreOutputs(outputs=[]))
            told.outputs.append(
                EngineCoreOutput(
                    request_id=request_id,
                    new_token_ids=[],
                    finish_reason=FinishReason.ABORT,
                    stop_reason=OVERDUE,
                )
            )
        return outputs


class GatedAsyncScheduler(GatedScheduler, AsyncScheduler):
    """For engines with async scheduling."""
