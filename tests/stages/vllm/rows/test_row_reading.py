"""Rows of requests that read the prefix cache, by vLLM's own scheduler and without a model.

A row here is a number that only the tokens up to its position give, and so is the token that is
sampled behind it. So whatever is read, preempted or evicted, it is known which rows must leave.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.bridge_configs import bridged_config
from support.pipe_sender import PipeSender
from support.waiting import wait_until
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.sender import MAX_BACKLOG_BYTES
from omnistage.stages.vllm.bridge.exporter import Exporter
from omnistage.stages.vllm.bridge.worker_half import WorkerHalf
from omnistage.stages.vllm.rows.cached_rows import CachedRows
from omnistage.stages.vllm.rows.row_cache import RowCache, most_replayed, num_slots
from omnistage.stages.vllm.rows.row_reading import RowReadingAsyncScheduler, RowReadingScheduler
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.vllm.step.request_options import ExportedRows, RequestOptions
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES, Export, StepSchema
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.worker.ports import Port

pytestmark = pytest.mark.engine  # what vLLM opens once stays open

SEATS, STEP, BLOCK, NUM_BLOCKS, LONGEST = 4, 64, 16, 40, 256
MOST_SLOTS = 64
MEDIA = [0, 1]  # of the eight ids of tokens
ALL = ExportedRows()
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


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path, run_directory: Path, cpu_engine: None) -> VllmConfig:
    sinks = [Sink("next", Port("none", "shm", str(run_directory), {}))]
    bridge = BridgeConfig(HIDDEN_STATES, sinks=sinks, row_cache_gib=1)
    return bridged_config(
        tiny_checkpoint,
        bridge,
        max_model_len=LONGEST,
        max_num_seqs=SEATS,
        max_num_batched_tokens=STEP,
        enable_prefix_caching=True,
    )


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


@pytest.fixture(scope="module", params=[RowReadingScheduler, RowReadingAsyncScheduler])
def scheduler(config: VllmConfig, request: pytest.FixtureRequest) -> Iterator[Any]:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    caches = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    config.cache_config.num_gpu_blocks = NUM_BLOCKS
    made = request.param(
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )
    yield made
    made.connector.shutdown()


@pytest.fixture
def engine(scheduler: Any, config: VllmConfig) -> Iterator[Engine]:
    sent: Any = Sent()
    cached = CachedRows(MOST_SLOTS * BLOCK, (1,), torch.int64)
    assert ROWS.export is not None
    exporter = Exporter({"next": (sent, [])}, ROWS.export, SEATS, cached=cached)
    yield Engine(scheduler, config, sent, exporter)
    exporter.close()


def text(length: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 8, length).tolist()
    return tokens


def test_each_turn_of_a_conversation_reads_what_the_one_before_has_filled(engine: Engine) -> None:
    prompt, before = text(40, 0), 1
    for turn in range(4):
        name = f"turn {turn}"
        answer = engine.ask(name, prompt, 20, ALL)
        engine.run()
        assert engine.num_read[name] == (before - 1) // BLOCK * BLOCK
        before = len(prompt) + len(answer)
        prompt = [*prompt, *answer, *text(13, turn + 1)]


def test_without_a_row_cache_only_requests_without_rows_read_the_prefix_cache(
    engine: Engine,
) -> None:
    engine.begin(0)
    for name, wants in (("rows", ALL), ("more", ALL), ("no", None)):
        engine.ask(name, text(50, 0), 4, wants)
        engine.run()
    assert engine.num_read == {"rows": 0, "more": 0, "no": 48}


def test_a_prompt_whose_rows_were_never_made_is_read_up_to_its_first_medium(engine: Engine) -> None:
    prompt = [*[5] * 40, *text(40, 0)]
    engine.ask("silent", prompt, 4)
    engine.run()
    engine.ask("spoken", prompt, 4, ExportedRows(ids=MEDIA))
    engine.run()
    engine.ask("again", prompt, 4, ExportedRows(ids=MEDIA))
    engine.ask("whole", prompt, 4, ALL)
    engine.run()
    assert engine.num_read == {"silent": 0, "spoken": 32, "again": 64, "whole": 0}


def test_two_requests_with_one_prompt_at_once_send_all_of_their_rows(engine: Engine) -> None:
    """vLLM lets the second read what the first computes in the same step."""
    for name in ("a", "b"):
        engine.ask(name, text(30, 0), 6, ALL)
    engine.run()
    assert engine.num_read == {"a": 0, "b": 0}


def test_nothing_is_replayed_after_the_prefix_cache_was_reset(engine: Engine) -> None:
    engine.ask("before", text(60, 0), 4, ALL)
    engine.run()
    assert len(engine.half.exports.row_cache) > 0
    engine.scheduler.reset_prefix_cache()
    assert len(engine.half.exports.row_cache) == 0
    engine.ask("after", text(60, 0), 4, ALL)
    engine.run()
    assert engine.num_read["after"] == 0


def test_a_preempted_request_reads_the_cache_again_and_sends_no_row_for_what_it_reads(
    engine: Engine,
) -> None:
    """There is no room for all rows, but those of what it had computed have left already."""
    engine.begin(2)
    for number in range(3):
        engine.ask(f"long {number}", text(150, number), 90, ALL)
    engine.run()
    assert engine.preempted
    assert any(num > BLOCK for num in engine.num_read_again)
    assert not any(engine.num_read.values())


def test_media_and_adapters_that_differ_are_blocks_of_their_own(engine: Engine) -> None:
    """vLLM's hashes say so; rows are kept by them."""
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    def hashes(medium: str, lora: str) -> list[Any]:
        place = PlaceholderRange(offset=20, length=8)
        feature = MultiModalFeatureSpec(
            data=None, modality="image", identifier=medium, mm_position=place
        )
        params = SamplingParams(max_tokens=1)
        adapter = LoRARequest(lora, 1, "/folder") if lora else None
        request = Request(
            "r", text(64, 0), params, None,
            mm_features=[feature], lora_request=adapter, block_hasher=engine.hasher,
        )  # fmt: skip
        return list(request.block_hashes)

    plain, other, adapted = hashes("a", ""), hashes("b", ""), hashes("a", "kind")
    assert plain == hashes("a", "")
    assert [one == two for one, two in zip(plain, other, strict=True)] == [
        True,
        False,
        False,
        False,
    ]
    assert not set(plain) & set(adapted)


def test_an_engine_that_cannot_keep_rows_has_no_room_for_them(config: VllmConfig) -> None:
    bridge = BridgeConfig.from_config(config.kv_transfer_config.kv_connector_extra_config)
    row_bytes = config.model_config.get_hidden_size() * 4
    assert num_slots(bridge, config, BLOCK) == (1 << 30) // (row_bytes * BLOCK)
    without: list[dict[str, Any]] = [
        {"row_cache_gib": 0.0},
        {"sinks": []},
        {"schema": StepSchema()},
    ]
    for changed in without:
        assert num_slots(replace(bridge, **changed), config, BLOCK) == 0
    assert most_replayed(bridge, config) == MAX_BACKLOG_BYTES // 2 // row_bytes


WANTS = st.sampled_from([ALL, ExportedRows(ids=MEDIA), ExportedRows(first=20), None])
ASKED = st.tuples(st.just("ask"), st.integers(0, 2), st.integers(1, 70), WANTS)
OTHERS = st.tuples(st.sampled_from(["step", "abort", "reset"]), st.integers(0, 8))
OPERATIONS = st.lists(st.one_of(ASKED, ASKED, OTHERS), max_size=24)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    operations=OPERATIONS, num_row_slots=st.integers(0, MOST_SLOTS), most=st.integers(0, LONGEST)
)
def test_every_row_leaves_once_and_is_the_one_of_its_tokens(
    operations: list[Any], num_row_slots: int, most: int, engine: Engine
) -> None:
    """However long conversations share, evict, are preempted, cancelled and asked at once."""
    engine.begin(num_row_slots, most)
    turns: list[list[int]] = [[], [], []]
    names: list[str] = []
    engine.sent.rows.clear()
    engine.sent.done.clear()
    for what, number, *more in operations:
        if what == "ask":
            prompt = [*turns[number], *text(more[0], number)]
            if len(prompt) > LONGEST - 51:
                prompt = text(more[0], number)
            names.append(f"drawn {len(names)} {id(operations)}")
            turns[number] = [*prompt, *engine.ask(names[-1], prompt, 1 + number * 25, more[1])]
        elif what == "abort" and names:
            engine.abort(names[number % len(names)])
        elif what == "reset":
            engine.scheduler.reset_prefix_cache()
        elif what == "step":
            for _ in range(number):
                engine.step()
    engine.run()
