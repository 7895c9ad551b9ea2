"""The half in the scheduler's process: finds the step after which a request's keys and values go.

Blocks are held for a request that has ended until its keys and values have left, as vLLM lets a
connector do.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from omnistage.stages.vllm.kv.kv_meta import DueKv, KvMeta
from omnistage.stages.vllm.step.request_options import RequestOptions


@dataclass(slots=True)
class _Awaited:
    """A request whose prompt is not computed yet."""

    options: RequestOptions
    num_prompt: int
    blocks: list[int] = field(default_factory=list)


class KvScheduling:
    """Writes one KvMeta a step."""

    def __init__(self) -> None:
        self._awaited: dict[str, _Awaited] = {}
        self._sending: dict[str, _Awaited] = {}  # their blocks must not be written
        self._ended: set[str] = set()  # of those, the requests that have ended
        self._dropped: list[str] = []

    @property
    def is_holding(self) -> bool:
        """Returns whether blocks are held for requests that have ended."""
        return bool(self._ended)

    def build(self, output: SchedulerOutput) -> KvMeta:
        """Describe this step."""
        meta = KvMeta(dropped=self._dropped, is_idle=output.total_num_scheduled_tokens == 0)
        self._dropped = []
        for request_id in output.preempted_req_ids or ():
            again = self._sending.pop(request_id, None)
            if again is not None:  # its prompt will be computed, and sent, once more
                meta.preempted.append(request_id)
                self._awaited[request_id] = again
        for new in output.scheduled_new_reqs:
            options = RequestOptions.of(new.sampling_params)
            if options is not None and options.kv is not None:
                num_prompt = len(new.prompt_token_ids or ())
                awaited = _Awaited(options, num_prompt, list(new.block_ids[0]))
                self._awaited[new.req_id] = awaited
                self._end_of_prompt(meta, output, new.req_id, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        if self._awaited:
            states = zip(
                cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
            )
            for request_id, blocks, num_computed in states:
                one = self._awaited.get(request_id)
                if one is None:
                    continue
                if request_id in cached.resumed_req_ids:
                    one.blocks.clear()
                one.blocks += blocks[0] if blocks is not None else ()
                self._end_of_prompt(meta, output, request_id, num_computed)
        return meta

    def _end_of_prompt(
        self, meta: KvMeta, output: SchedulerOutput, request_id: str, num_computed: int
    ) -> None:
        one = self._awaited[request_id]
        if num_computed + output.num_scheduled_tokens[request_id] < one.num_prompt:
            return
        self._sending[request_id] = self._awaited.pop(request_id)
        meta.due.append(DueKv(request_id, one.options, list(one.blocks), one.num_prompt))

    def finish(self, request: Request) -> bool:
        """A request has ended; returns whether its blocks are held until it is sent."""
        request_id = request.request_id
        self._awaited.pop(request_id, None)
        if request_id not in self._sending:
            return False
        self._ended.add(request_id)
        if request.status == RequestStatus.FINISHED_ABORTED:
            self._dropped.append(request_id)
        return True

    def sent(self, request_ids: Collection[str]) -> None:
        """Blocks of these are held no longer."""
        for request_id in request_ids:
            self._sending.pop(request_id, None)
            self._ended.discard(request_id)
