"""Parts of prompts in vLLM's own scheduler, without a model: what each step takes, and of whom."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bridge.bridge_configs import bridged_config
from support.bridge.prefill_parts import Scheduled
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

from omnistage.connectors import make_connector
from omnistage.stages.qwen3_omni.step_schema import TALKER_COLUMNS
from omnistage.stages.vllm.bridge.gate import GatedAsyncScheduler, GatedScheduler
from omnistage.stages.vllm.bridge.prefill_part import least_part
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.step_schema import RowInput, StepSchema
from omnistage.stages.worker.ports import Port

pytestmark = pytest.mark.engine  # what vLLM opens once stays open
SEATS, STEP, LEAST, BLOCK = 4, 64, 8, 16


@pytest.mark.parametrize(
    ("is_chunked", "wanted", "least"),
    [(True, None, 8), (True, 20, 20), (True, 0, 0), (False, 20, 0)],
)
def test_a_part_has_at_least_an_eighth_of_a_step_unless_told_otherwise(
    is_chunked: bool, wanted: int | None, least: int
) -> None:
    config: Any = SimpleNamespace(enable_chunked_prefill=is_chunked, max_num_batched_tokens=STEP)
    assert least_part(config, wanted) == least


@pytest.fixture(scope="module", params=[GatedScheduler, GatedAsyncScheduler])
def scheduler_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path, run_directory: Path, cpu_engine: None) -> VllmConfig:
    bridge = BridgeConfig(
        StepSchema(TALKER_COLUMNS, RowInput(4, dtype="float32")),
        feeds=[Port("part.feed", "shm", str(run_directory), {})],
        prefill_part=LEAST,
    )
    return bridged_config(
        tiny_checkpoint,
        bridge,
        max_model_len=512,
        max_num_seqs=SEATS,
        max_num_batched_tokens=STEP,
        enable_prefix_caching=False,
    )


@pytest.fixture(scope="module")
def scheduled(config: VllmConfig, run_directory: Path, scheduler_class: Any) -> Iterator[Scheduled]:
    connector = make_connector("shm", run_directory, {})
    connector.create("part.feed")
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    caches = KVCacheConfig(
        num_blocks=1000,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    config.cache_config.num_gpu_blocks = 1000
    scheduler = scheduler_class(
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )
    feed = make_connector("shm", run_directory, {"credit": 0}).sender("part.feed")
    yield Scheduled(scheduler, feed)
    feed.close()
    scheduler.connector.shutdown()
    connector.destroy("part.feed")


@pytest.fixture
def steps(scheduled: Scheduled) -> Iterator[Scheduled]:
    """Nothing is left of a test's requests: no row, no inputs, no KV block."""
    yield scheduled
    left = list(scheduled.scheduler.requests)
    assert not left
    scheduled.step()
    assert scheduled.num_blocks == 0
    assert not scheduled.half._rows.row_of
    assert not scheduled.half._inputs


def test_a_prompt_runs_as_far_as_it_has_come(steps: Scheduled) -> None:
    steps.add("a", 50, [20, 30, 45])
    assert steps.step() == {"a": 20}
    assert steps.step() == {}
    steps.send_rows("a", [20], [30, 45])
    assert steps.step() == {"a": 10}
    steps.send_rows("a", [30, 45], [])
    assert steps.step() == {}  # the first token is due: what has come runs with it
    steps.send_tokens("a")
    assert steps.step() == {"a": 20}
    assert steps.step() == {"a": 1}


def test_a_long_rest_behind_the_last_row_does_not_wait_for_the_first_token(
    steps: Scheduled,
) -> None:
    steps.add("a", 50, [20])
    assert steps.step() == {"a": 20}
    steps.send_rows("a", [20], [])
    assert steps.step() == {"a": 29}  # the last row is the first token's
    steps.send_tokens("a")
    assert steps.step() == {"a": 1}
    steps.step()


def test_fewer_tokens_than_a_part_wait(steps: Scheduled) -> None:
    steps.add("a", 50, [LEAST - 1, 40])
    assert steps.step() == {}
    steps.send_rows("a", [LEAST - 1, 40], [])
    steps.send_tokens("a")
    assert steps.step() == {"a": 50}
    steps.step()


def test_a_prompt_that_has_come_whole_runs_before_parts(steps: Scheduled) -> None:
    steps.add("part", 60, [40])
    steps.add("whole", 30, [])
    steps.send_tokens("whole")
    assert steps.step() == {"whole": 30}
    assert steps.step() == {"whole": 1, "part": 39}
    steps.send_rows("part", [40], [])
    steps.send_tokens("part")
    assert steps.step()["part"] == 21
    steps.step()


def test_many_prompts_each_get_their_parts_and_never_more(steps: Scheduled) -> None:
    for number in range(6):
        steps.add(f"many-{number}", 40 + number, [30])
    taken = [steps.step() for _ in range(6)]
    assert taken[:2] == [{"many-0": 30}, {"many-1": 30}]
    assert not any(taken[2:])  # half of the seats are for prompts that have come whole
    for number in range(6):
        steps.send_rows(f"many-{number}", [30], [])
        steps.send_tokens(f"many-{number}")
    for _ in range(40):
        steps.step()
    assert all(
        steps.taken[name] == steps.length[name] + 1 for name in steps.length if "many" in name
    )


def test_an_abort_in_the_middle_of_a_prompt_leaves_nothing(steps: Scheduled) -> None:
    from vllm.v1.request import RequestStatus

    steps.add("a", 50, [20, 40])
    assert steps.step() == {"a": 20}
    assert steps.num_blocks == 2
    assert steps.half._rows.row_of
    steps.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)


def test_a_part_whose_rest_never_comes_is_overdue(
    steps: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnistage.stages.vllm.step.step import OVERDUE

    steps.add("a", 50, [20, 40])
    assert steps.step() == {"a": 20}
    steps.send_rows("a", [20], [40])
    assert steps.step() == {"a": 20}
    monkeypatch.setattr(steps.half._late, "_limits_s", (0.0, 0.0))
    steps.half._next_look = 0.0
    steps.step()
    (told,) = steps.told[0].outputs
    assert (told.request_id, told.stop_reason) == ("a", OVERDUE)


LONGEST = 200
PROMPTS = st.tuples(st.integers(20, LONGEST), st.sets(st.integers(0, LONGEST), max_size=8))
ARRIVALS = st.tuples(st.integers(0, 5), st.integers(0, 8))  # whose, and how many rows


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(prompts=st.lists(PROMPTS, min_size=1, max_size=6), arrivals=st.lists(ARRIVALS, max_size=16))
def test_no_token_ever_runs_before_its_input(
    prompts: list[tuple[int, set[int]]], arrivals: list[tuple[int, int]], steps: Scheduled
) -> None:
    """However prompts come in pieces; in the end each has run, and each token once."""
    steps.half._next_look = float("inf")  # nothing is overdue meanwhile
    names = [f"drawn-{len(steps.length)}-{number}" for number in range(len(prompts))]
    missing: dict[str, list[int]] = {}
    for name, (length, hidden) in zip(names, prompts, strict=True):
        missing[name] = sorted(position for position in hidden if position < length - 1)
        steps.add(name, length, missing[name])
    without_tokens = set(names)
    for number, count in arrivals:
        name = names[number % len(names)]
        if missing[name] and count:
            steps.send_rows(name, missing[name][:count], missing[name][count:])
            missing[name] = missing[name][count:]
        elif name in without_tokens:
            steps.send_tokens(name)
            without_tokens.discard(name)
        steps.step()
    for name in names:
        if missing[name]:
            steps.send_rows(name, missing[name], [])
        if name in without_tokens:
            steps.send_tokens(name)
    for _ in range(LONGEST):
        if steps.scheduler.requests:
            steps.step()
    assert [steps.taken[name] for name in names] == [steps.length[name] + 1 for name in names]
