"""A scheduler and the bridge of a producer, without a model: each row is a number of its tokens."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from support.channels.pipe_sender import PipeSender
from support.waiting import wait_until
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from omnistage.connectors.chunk import Chunk
from omnistage.stages.vllm.bridge.exporter import Exporter
from omnistage.stages.vllm.bridge.worker_half import WorkerHalf
from omnistage.stages.vllm.rows.row_cache import RowCache
from omnistage.stages.vllm.rows.row_reading import RowReadingAsyncScheduler
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions
from omnistage.stages.vllm.step.step_schema import Export, StepSchema
from omnistage.stages.vllm.step.step_table import StepTable

SEATS, STEP, BLOCK, NUM_BLOCKS, LONGEST = 4, 64, 16, 40, 256
MOST_SLOTS = 64
MEDIA = [0, 1]  # of the eight ids of tokens
ROWS = StepSchema(export=Export("hidden", "row", "int64"))


def row_of(tokens: Sequence[int]) -> int:
    """Of the last of these tokens."""
    return hash(tuple(tokens)) >> 2


def answer_to(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The tokens that are sampled behind a prompt."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(row_of(tokens) % 8)
    return tokens[len(prompt) :]


class Sent(PipeSender):
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[tuple[int, int]]] = defaultdict(list)  # positions and values
        self.done: set[str] = set()

    def send(self, chunk: Chunk) -> None:
        if chunk.tensors:
            positions, values = (chunk.tensors[name].numpy() for name in ("positions", "hidden"))
            pairs = zip(positions.tolist(), values[:, 0].tolist(), strict=True)
            self.rows[chunk.request_id] += pairs
        self.done |= {chunk.request_id} if chunk.last else set()


class Engine:
    """A scheduler and both halves of its bridge; what it computes is known beforehand."""

    def __init__(self, scheduler: Any, config: Any, sent: Sent, exporter: Exporter) -> None:
        self.scheduler = scheduler
        self.half = scheduler.connector.scheduler_half
        self.sent, self.exporter = sent, exporter
        limits = SimpleNamespace(max_num_batched_tokens=STEP, max_num_seqs=SEATS)
        told: Any = SimpleNamespace(
            scheduler_config=limits, model_config=config.model_config, kv_transfer_config=None
        )
        self.table = StepTable(told, torch.device("cpu"), ROWS)
        self.table.make_export(1)
        self.worker = WorkerHalf(self.table, NUM_BLOCKS * BLOCK, exporter)
        self.is_async = isinstance(scheduler, RowReadingAsyncScheduler)
        self.running: deque[Any] = deque()  # steps whose results were not told yet
        hash_function = get_hash_fn_by_name("sha256")
        init_none_hash(hash_function)
        self.hasher: Callable[[Request], Any] = get_request_block_hasher(BLOCK, hash_function)
        self.begin(MOST_SLOTS)

    def begin(self, num_row_slots: int, most_replayed: int = LONGEST) -> None:
        """Nothing is cached, and there is room for rows of so many blocks."""
        self.scheduler.reset_prefix_cache()
        cache = RowCache(num_row_slots, BLOCK, most_replayed) if num_row_slots else None
        self.half.exports.row_cache = cache
        self.tokens: dict[str, list[int]] = {}  # of each request, its answer's too
        self.wanted: dict[str, list[int]] = {}  # positions of which rows must leave
        self.num_read: dict[str, int] = {}  # tokens, when it began
        self.num_read_again: list[int] = []  # of requests that were preempted
        self.aborted: set[str] = set()
        self.preempted: set[str] = set()

    def ask(
        self, name: str, prompt: Sequence[int], num_tokens: int, wants: ExportedRows | None = None
    ) -> list[int]:
        """Add a request; what its answer will be."""
        options = None if wants is None else RequestOptions(name, exported=wants).extra_args()
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, extra_args=options)
        request = Request(name, list(prompt), params, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)
        answer = answer_to(prompt, num_tokens)
        self.tokens[name] = [*prompt, *answer]
        everything = range(len(prompt) + num_tokens - 1)  # the last token is not fed back
        if wants is not None and wants.ids is not None:
            self.wanted[name] = [n for n in range(len(prompt)) if prompt[n] in MEDIA]
        elif wants is not None and wants.first is not None:
            self.wanted[name] = list(range(wants.first, len(prompt)))
        else:
            self.wanted[name] = list(everything) if wants else []
        return answer

    def step(self) -> dict[str, int]:
        """Schedule and compute one step; how many tokens it took of which request."""
        output = self.scheduler.schedule()
        cached = output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in output.scheduled_new_reqs:
            starts[new.req_id] = new.num_computed_tokens
            self.num_read[new.req_id] = new.num_computed_tokens
        resumed = cached.resumed_req_ids
        self.num_read_again += [starts[name] for name in resumed]
        self.preempted |= set(output.preempted_req_ids or ())
        counts = dict(output.num_scheduled_tokens)
        self._compute(output.kv_connector_metadata, starts, counts)
        self.running.append((output, self._result(starts, counts)))
        if len(self.running) > self.is_async or not counts:
            self.scheduler.update_from_output(*self.running.popleft())
        return counts

    def _compute(self, meta: Any, starts: dict[str, int], counts: dict[str, int]) -> None:
        self.worker.before_forward(meta)
        rows = [
            row_of(self.tokens[name][: position + 1])
            for name, count in counts.items()
            for position in range(starts[name], starts[name] + count)
        ]
        assert self.table.export is not None
        self.table.export[1 : len(rows) + 1, 0] = torch.tensor(rows, dtype=torch.int64)
        self.worker.after_forward(meta)

    def _result(self, starts: dict[str, int], counts: dict[str, int]) -> ModelRunnerOutput:
        sampled = []
        for name, count in counts.items():
            end = starts[name] + count
            request = self.scheduler.requests[name]
            known = request.num_tokens + request.num_output_placeholders - 1
            is_whole = end >= (known if self.is_async else request.num_tokens)
            following = self.tokens[name][end] if end < len(self.tokens[name]) else 0
            sampled.append([following] if is_whole else [])
        return ModelRunnerOutput(
            req_ids=list(counts),
            req_id_to_index={name: number for number, name in enumerate(counts)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def abort(self, name: str) -> None:
        """Its client is gone."""
        if name in self.scheduler.requests:
            self.aborted.add(name)
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def run(self) -> None:
        """To the end of all requests; checks the rows of each."""
        for _ in range(4000):
            if not self.scheduler.requests:
                break
            self.step()
        assert not self.scheduler.requests
        self.step()
        self.step()
        self._check_nothing_is_left()
        streamed = {
            name for name, wanted in self.wanted.items() if wanted and name in self.num_read
        }
        wait_until(lambda: streamed <= self.sent.done)
        for name in streamed:
            self._check(name)

    def _check_nothing_is_left(self) -> None:
        """No request is known, and each slot is a block's or free."""
        cache = self.half.exports.row_cache
        if cache is not None:
            index = cache._index
            assert not cache._requests
            assert len(index) + len(index._free) == index._num_begun

    def _check(self, name: str) -> None:
        """All wanted rows, each the one of its tokens, in order; twice only after a preemption."""
        rows, tokens, wanted = self.sent.rows[name], self.tokens[name], self.wanted[name]
        positions = [position for position, _ in rows]
        for position, value in rows:
            if position < len(tokens):
                assert value == row_of(tokens[: position + 1]), (name, position)
        if name not in self.preempted:
            assert positions == sorted(set(positions)), name
        allowed = {*wanted, len(tokens) - 1} if self.is_async else {*wanted}
        assert set(positions) <= allowed, name
        if name not in self.aborted:
            assert set(positions) >= set(wanted), name


def text(length: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 8, length).tolist()
    return tokens
