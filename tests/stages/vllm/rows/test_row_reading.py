"""Rows of requests that read the prefix cache, by vLLM's own scheduler and without a model.

A row here is a number that only the tokens up to its position give, and so is the token that is
sampled behind it. So whatever is read, preempted or evicted, it is known which rows must leave.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.bridge.bridge_configs import bridged_config
from support.bridge.row_reading import (
    BLOCK,
    LONGEST,
    MEDIA,
    MOST_SLOTS,
    NUM_BLOCKS,
    ROWS,
    SEATS,
    STEP,
    Engine,
    Sent,
    text,
)
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from omnistage.connectors.sender import MAX_BACKLOG_BYTES
from omnistage.stages.vllm.bridge.exporter import Exporter
from omnistage.stages.vllm.rows.cached_rows import CachedRows
from omnistage.stages.vllm.rows.row_cache import most_replayed, num_slots
from omnistage.stages.vllm.rows.row_reading import RowReadingAsyncScheduler, RowReadingScheduler
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.vllm.step.request_options import ExportedRows
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES, StepSchema
from omnistage.stages.worker.ports import Port

pytestmark = pytest.mark.engine  # what vLLM opens once stays open
ALL = ExportedRows()


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
