"""The parts of a talker's step on the host: vLLM's scheduler, with our bridge and beside it."""

import statistics
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Sender
from omnistage.stages.messages.edge import EDGE, StageTokens
from omnistage.stages.qwen3_omni.step_schema import TALKER_COLUMNS
from omnistage.stages.qwen3_omni.talker_model import talker_config
from omnistage.stages.vllm.bridge.exporter import Exported, Exporter
from omnistage.stages.vllm.bridge.worker_half import WorkerHalf
from omnistage.stages.vllm.compat import AsyncEngineArgs
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.vllm.step.request_options import RequestOptions, late_input_options
from omnistage.stages.vllm.step.step import StartedRequest, StepMeta
from omnistage.stages.vllm.step.step_schema import ColumnLayout, Export, RowInput, StepSchema
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.worker.ports import Port

BLOCK, PROMPT, CODE, NUM_CODES = 16, 80, 7, 16
CODES = Export("codes", "frame", "int32")
SCHEMA = StepSchema(TALKER_COLUMNS, RowInput(4, dtype="float32"), CODES)


def configured(model: Path, run: Path, num_requests: int, length: int, bridged: bool) -> VllmConfig:
    """A talker's, with our connector or without."""
    bridge = BridgeConfig(
        SCHEMA,
        feeds=[Port("host.feed", "shm", str(run), {})],
        sinks=[Sink("host", Port("host.rows", "shm", str(run), {}), [2, 2, 4, 8, 16, 25])],
        ledger=str(run / "ledger"),
    )
    transfer = {
        "kv_connector": "OmnistageConnector",
        "kv_connector_module_path": "omnistage.stages.vllm.bridge.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": bridge.to_config(),
    }
    arguments = AsyncEngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        hf_overrides=talker_config,
        dtype="float32",
        max_model_len=length,
        max_num_seqs=num_requests,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        kv_transfer_config=transfer if bridged else None,
    )
    return arguments.create_engine_config()


class Scheduled:
    """A scheduler whose requests all decode, one step ahead of what they are told of the last."""

    def __init__(self, config: VllmConfig, scheduler_class: Any, num_requests: int) -> None:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        length = config.model_config.max_model_len
        num_blocks = 2 + num_requests * (length // BLOCK + 1)
        caches = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        config.cache_config.num_gpu_blocks = num_blocks
        self.scheduler = scheduler_class(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )
        self.meta: Any = None
        self._before: SchedulerOutput | None = None
        for number in range(num_requests):
            self.scheduler.add_request(request(str(number), length))

    def step(self) -> tuple[float, float]:
        """Seconds of `schedule`, and of `update_from_output` with the step before."""
        begun = time.perf_counter()
        output = self.scheduler.schedule()
        scheduled_s = time.perf_counter() - begun
        self.meta = output.kv_connector_metadata
        before, self._before = self._before, output
        if before is None:
            return scheduled_s, 0.0
        told = sampled(before)
        begun = time.perf_counter()
        self.scheduler.update_from_output(before, told)
        return scheduled_s, time.perf_counter() - begun


def request(name: str, length: int) -> Request:
    """One that speaks until it has no room, with all that it needs."""
    params = SamplingParams(
        max_tokens=length - PROMPT,
        ignore_eos=True,
        extra_args=bridge_options(name, complete=True).extra_args(),
    )
    return Request(name, [0] * PROMPT, params, None)


def bridge_options(name: str, complete: bool) -> RequestOptions:
    """A prompt without media, and the first token that is spoken; `complete`: the only one."""
    return late_input_options(
        name,
        ColumnLayout(TALKER_COLUMNS).pack(PROMPT, {}),
        first_token_position=PROMPT - 1,
        ends={"tokens": (1, 2)},
        fed={"tokens": [3]},
        complete=complete,
    )


def sampled(output: SchedulerOutput) -> ModelRunnerOutput:
    """Returns what a model could have answered: a code of each request whose prompt has been
    read.
    """
    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: number for number, name in enumerate(names)},
        sampled_token_ids=[[CODE] for _ in names],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


class Fed:
    """The tokens from the thinker, one of each request, which a step collects."""

    def __init__(self, scheduled: Scheduled, feed: Sender, num_requests: int) -> None:
        self._collect = scheduled.scheduler.connector.scheduler_half.collect
        self._feed = feed
        self._names = [f"fed-{number}" for number in range(num_requests)]
        late = scheduled.scheduler.connector.scheduler_half._late
        for name in self._names:
            late.open(name, bridge_options(name, complete=False).late)

    def collected_us(self, steps: int) -> float:
        """Microseconds to collect a token of each request."""
        tokens = {"tokens": Tensor.from_numpy(np.array([3], np.int32))}
        times = []
        for _ in range(steps):
            for name in self._names:
                self._feed.send(Chunk(name, StageTokens(), 0, tokens))
            begun = time.perf_counter()
            self._collect()
            times.append(time.perf_counter() - begun)
        return 1e6 * statistics.median(times)


class Drained:
    """The way of a step's codes: the worker half, and then the exporter as its thread runs it."""

    def __init__(self, config: VllmConfig, meta: StepMeta, connector: Any) -> None:
        num_requests = config.scheduler_config.max_num_seqs
        table = StepTable(config, torch.device("cpu"), SCHEMA)
        table.make_export(NUM_CODES)
        self._receiver = connector.receiver("host.rows", EDGE)
        self._sender = connector.sender("host.rows")
        sizes = [2, 2, 4, 8, 16, 25]
        self._exporter = Exporter({"host": (self._sender, sizes)}, CODES, num_requests)
        self._given: list[Exported] = []
        kept: Any = SimpleNamespace(put=self._given.append)
        num_slots = config.cache_config.num_gpu_blocks * BLOCK
        self._worker = WorkerHalf(table, num_slots, kept)
        self._meta, self._frame = meta, 0
        for row in range(1, num_requests + 1):
            self._exporter._open(
                StartedRequest(row, f"drained-{row}", RequestOptions(f"drained-{row}"))
            )

    def write(self) -> None:
        """The worker half's own part of a step."""
        self._given.clear()
        self._worker.before_forward(self._meta)
        self._worker.after_forward(self._meta)

    def export(self) -> None:
        """Exports beside the engine, as the exporter's thread does."""
        (given,) = self._given
        assert given.values is not None
        positions = np.full(len(given.rows), self._frame, np.int32)
        self._frame += 1
        self._exporter._gather_step(replace(given, positions=positions), given.values)

    def drain(self) -> None:
        """Drains like code2wav."""
        while (chunk := self._receiver.receive()) is not None:
            self._receiver.grant(chunk.request_id)

    def close(self) -> None:
        """Close both ends."""
        self._exporter.close()
        self._receiver.close()
