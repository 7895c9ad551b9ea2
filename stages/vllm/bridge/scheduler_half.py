"""The connector's half in the scheduler's process: rows, late inputs and what is to be exported."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from omnistage.stages.vllm.bridge.blocked import BlockedRows
from omnistage.stages.vllm.bridge.drafts import Drafts
from omnistage.stages.vllm.bridge.exports import Exports
from omnistage.stages.vllm.bridge.late_inputs import LateInputs
from omnistage.stages.vllm.bridge.late_rows import COMPUTED, NO_ROW
from omnistage.stages.vllm.bridge.prefill_part import PrefillPart, least_part
from omnistage.stages.vllm.bridge.request_inputs import RequestInputs
from omnistage.stages.vllm.bridge.rows import RowNumbers, StepTokens
from omnistage.stages.vllm.rows.row_cache import RowCache, wanted_rows
from omnistage.stages.vllm.rows.row_store import RowStore
from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.ranks import is_lockstep
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.vllm.step.step import Finished, StartedRequest, StepMeta
from omnistage.stages.worker.ledger import Held, Ledger, Seen

LOOK_EVERY_S = 0.25


class SchedulerHalf:
    """Writes one StepMeta a step and tells the gate which requests can run."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        block_size: int,
        late_inputs: LateInputs | None,
        ledger: Ledger | None = None,
        prefill_part: int | None = None,
        blocked: BlockedRows | None = None,
        row_cache: RowCache | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        scheduler = vllm_config.scheduler_config
        num_rows = scheduler.max_num_seqs
        max_model_len = vllm_config.model_config.max_model_len
        self._is_lockstep = is_lockstep(vllm_config)
        self._max_step_tokens = scheduler.max_num_batched_tokens
        self._least_part = least_part(scheduler, prefill_part)
        self._part: PrefillPart | None = None
        self._rows = RowNumbers(num_rows, max_model_len, block_size)
        self._late = late_inputs
        self._ledger = ledger
        self._inputs: dict[str, RequestInputs] = {}
        self.exports = Exports(block_size, row_cache, drafts)
        self._ids: dict[str, str] = {}
        self._next_look = 0.0
        self._blocked = blocked
        num_inputs = late_inputs.layout.num_inputs if late_inputs else 0
        self._num_words = step.NUM_OWN + num_inputs
        shape = (num_rows + 1, max_model_len + 1, num_inputs) if late_inputs else (1, 1, 0)
        self._table = np.zeros(shape, np.int32)
        self._store = late_inputs.store if late_inputs else None
        self._places = np.zeros((num_rows + 1, max_model_len + 1 if self._store else 0), np.int32)

    # What the gate asks

    def collect(self) -> None:
        """Take what has arrived for requests; once a step, before any other question."""
        if self._late is not None:
            self._late.collect()

    def choose_part(
        self, running: Iterable[Request], waiting: Iterable[Request], may_begin: bool
    ) -> PrefillPart | None:
        """Let one request run a part of its prompt in this step, unless another can run whole.

        Its inputs have come for the part, in which there is room for a token of all that run.
        """
        self._part = None
        if self._late is None or not self._least_part:
            return None
        running = list(running)
        begun = [one for one in running if one.num_computed_tokens < one.num_prompt_tokens]
        prompts = [*begun, *waiting]
        if any(map(self.can_run, prompts)):
            return None
        for request in prompts if may_begin else begun:
            inputs = self._inputs[request.request_id]
            num_ready = inputs.available - request.num_computed_tokens
            if inputs.is_token_due(
                self._least_part
            ):  # the whole rest runs with it, in one step and not in two
                continue
            if num_ready >= self._least_part + len(running):
                self._part = PrefillPart(request.request_id, num_ready)
                break
        return self._part

    def held(self, running: Iterable[Request]) -> list[Request]:
        """Returns the running requests that cannot run now."""
        if self._late is None:
            return []
        is_any_blocked = self._blocked is not None and self._blocked.any()
        held = []
        for request in running:
            inputs = self._inputs.get(request.request_id)
            is_fed = (  # a decode, the most frequent of all questions
                inputs is not None
                and inputs.num_prompt <= request.num_computed_tokens < inputs.available
            )
            if (is_any_blocked or not is_fed) and not self.can_run(request):
                held.append(request)
        return held

    def can_run(self, request: Request) -> bool:
        """Returns whether every token that the scheduler could give this request now has its
        input.
        """
        if self._late is None:
            return True
        if self._part is not None and self._part.request_id == request.request_id:
            return True
        inputs = self._inputs.get(request.request_id)
        if inputs is None:
            options = RequestOptions.of(request.sampling_params)
            if options is None or options.late is None:
                return True
            inputs = self._late.open(options.id, options.late)
            self._inputs[request.request_id] = inputs
        done = request.num_computed_tokens
        if done < inputs.num_prompt:
            needed = min(inputs.num_prompt, done + self._max_step_tokens)
        else:
            needed = done + 1
            if self._is_blocked(request.request_id):
                return False
        return inputs.available >= needed

    def _is_blocked(self, request_id: str) -> bool:
        row = self._rows.row_of.get(request_id)
        return self._blocked is not None and row is not None and self._blocked[row]

    def is_any_ready(self, requests: Iterable[Request]) -> bool:
        """Returns whether one of these waiting requests could start."""
        return any(self.can_run(request) for request in requests)

    def wait(self, timeout_s: float) -> None:
        """Sleep until late inputs arrive; not where other engines would wait for this one."""
        if self._late is not None and not self._is_lockstep:
            self._late.wait(timeout_s)

    def expect(self, request: Request) -> None:
        """The engine has got a request: what comes for it is kept, however long it queues."""
        options = RequestOptions.of(request.sampling_params)
        if self._late is not None and options is not None:
            self._ids[request.request_id] = options.id
            self._late.expect(options.id)

    def overdue(self) -> list[str]:
        """Requests that have waited too long for an input; looked for a few times a second."""
        now = time.monotonic()
        if self._late is None or now < self._next_look:
            return []
        self._next_look = now + LOOK_EVERY_S
        overdue = set(self._late.overdue())
        return [request_id for request_id, feed_id in self._ids.items() if feed_id in overdue]

    def forget(self, request_id: str) -> None:
        """Drop the late inputs of a request that ended."""
        self._inputs.pop(request_id, None)
        feed_id = self._ids.pop(request_id, None)
        if self._late is not None and feed_id is not None:
            self._late.close(feed_id)
        self._count()

    def _count(self) -> None:
        if self._ledger is None:
            return
        self._ledger.write(Held.ROWS, len(self._rows.row_of))
        self._ledger.write(Held.LATE_INPUTS, len(self._inputs))
        if self._store is not None:
            self._ledger.write(Held.LATE_ROWS, self._store.num_held)

    def count_blocks(self, num_blocks: int) -> None:
        """KV cache blocks in use."""
        if self._ledger is not None:
            self._ledger.write(Held.BLOCKS, num_blocks)

    def count_waiting(self, num_requests: int) -> None:
        """Requests that wait because every seat is taken."""
        if self._ledger is not None:
            self._ledger.write(Seen.WAITING, num_requests)

    def finish(self, request: Request) -> None:
        """Drop what is known of a request that ended, but for the rows that are kept of it."""
        self.exports.finish(request)
        self.forget(request.request_id)

    # What a step is made of

    def build(self, output: SchedulerOutput) -> StepMeta:
        """Describe this step's tokens to the worker half."""
        meta = StepMeta()
        meta.accepted = self.exports.settle()
        for request_id, row in self._rows.release(output):
            meta.finished.append(Finished(row, request_id))
            self.exports.end(row)
            self.forget(request_id)
        for row, new in self._rows.assign(output):
            options = RequestOptions.of(new.sampling_params)
            meta.started.append(StartedRequest(row, new.req_id, self._start(row, new, options)))
        if meta.started or meta.finished:
            self._count()
        if output.total_num_scheduled_tokens == 0 or (self._late is None and not self.exports):
            return meta  # nothing comes in or goes out
        tokens = self._rows.tokens(output)
        columns = np.empty((len(tokens.rows), self._num_words), np.int32)
        columns[:, step.SLOT] = tokens.slots
        columns[:, step.ROW] = tokens.rows
        columns[:, step.FRAME] = -1
        columns[:, step.LAST] = tokens.is_last
        columns[:, step.HIDDEN] = 0
        meta.columns = columns
        if self._late is not None:
            self._add_inputs(meta, columns, tokens)
        if self.exports:
            self.exports.add_to(meta, tokens, output)
        return meta

    def _start(self, row: int, new: Any, options: RequestOptions | None) -> RequestOptions | None:
        """Give a request its row; what the worker half reads of its options."""
        if options is None:
            return None
        if self._late is not None and options.late is not None:
            inputs = self._inputs.get(new.req_id)
            if inputs is None:
                inputs = self._inputs[new.req_id] = self._late.open(options.id, options.late)
            self._table[row] = inputs.table
            inputs.table = self._table[row]
            if inputs.rows is not None:
                self._places[row] = inputs.rows.places
                inputs.rows.places = self._places[row]
        if options.exported is not None:
            wanted = wanted_rows(options.exported, new.prompt_token_ids)
            self.exports.begin(row, new.req_id, wanted)
        return msgspec.structs.replace(options, late=None, exported=None)

    def _add_inputs(self, meta: StepMeta, columns: step.Ints, tokens: StepTokens) -> None:
        columns[:, step.NUM_OWN :] = self._table[tokens.rows, tokens.positions]
        frames = tokens.positions - self._rows.num_prompt[tokens.rows]
        columns[:, step.FRAME] = np.maximum(frames, -1)
        meta.num_decodes = int(np.count_nonzero(frames >= 0))
        if self._store is not None:
            meta.hidden = self._take_rows(self._store, columns, tokens)
            self._count()

    def _take_rows(
        self, store: RowStore, columns: step.Ints, tokens: StepTokens
    ) -> npt.NDArray[np.uint8] | None:
        """The rows of this step's tokens, which are computed by it."""
        places = self._places[tokens.rows, tokens.positions]
        if not places.any():
            return None
        assert places.min() >= NO_ROW, "a hidden row was scheduled before it came, or twice"
        which = np.flatnonzero(places)
        columns[which, step.HIDDEN] = np.arange(1, len(which) + 1)
        self._places[tokens.rows[which], tokens.positions[which]] = COMPUTED
        return store.take(places[which])

    def shutdown(self) -> None:
        """Close what this half owns."""
        if self._late is not None:
            self._late.shutdown()
