"""The KV connector that vLLM loads by name: its methods hand over to the two halves.

It moves no KV cache. It is vLLM's own way to bring data into a step and out of it: scheduler half
`build_connector_meta`, worker half `bind_connector_metadata` (before the forward, on both model
runners) and `wait_for_save` (after it).
"""

from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from omnistage.stages.vllm.bridge.blocked import BlockedRows
from omnistage.stages.vllm.bridge.drafts import Drafts
from omnistage.stages.vllm.bridge.exporter import Exporter
from omnistage.stages.vllm.bridge.late_inputs import LateInputs
from omnistage.stages.vllm.bridge.scheduler_half import SchedulerHalf
from omnistage.stages.vllm.bridge.worker_half import WorkerHalf
from omnistage.stages.vllm.rows.cached_rows import CachedRows
from omnistage.stages.vllm.rows.row_cache import RowCache, most_replayed, num_slots
from omnistage.stages.vllm.step.ranks import RankCheck, is_first_of_equals
from omnistage.stages.vllm.step.step import StepMeta
from omnistage.stages.vllm.step.step_connector import StepConnector
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.worker.ledger import Ledger, lane_ledger


class OmnistageConnector(StepConnector):
    """Late inputs in, codec frames or hidden rows out."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._engine_id = vllm_config.kv_transfer_config.engine_id
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            raise ValueError(
                f"the model's layers have {len(groups)} kinds of KV cache; a stage of vLLM with an "
                "edge needs one: its tokens are known by their slot"
            )
        self._block_size = groups[0].kv_cache_spec.block_size
        self._num_slots = kv_cache_config.num_blocks * self._block_size
        self._num_row_slots = num_slots(self._config, vllm_config, self._block_size)
        self._num_rows = vllm_config.scheduler_config.max_num_seqs
        self._ledger, self._blocked = None, None
        if self._config.ledger:
            ledger = lane_ledger(Path(self._config.ledger), self._lane)
            self._ledger = Ledger(ledger)
            self._blocked = BlockedRows.beside(ledger, self._num_rows)
        self._worker: WorkerHalf | None = None
        self._scheduler: SchedulerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            late = None
            if self._config.late_inputs:
                max_model_len = vllm_config.model_config.max_model_len
                if not self._config.schema.is_repeatable:
                    num_blocks = kv_cache_config.num_blocks
                    refuse_preemption(num_blocks, self._block_size, self._num_rows, max_model_len)
                feeds = self._config.feeds
                receivers = [one for port in feeds for one in port.receivers(self._lane)]
                late = LateInputs(
                    receivers,
                    self._config.schema,
                    vllm_config.model_config.dtype,
                    max_model_len,
                    self._config.first_chunk_s,
                    self._config.next_chunk_s,
                )
            self._scheduler = SchedulerHalf(
                vllm_config,
                self._block_size,
                late,
                self._ledger,
                self._config.prefill_part,
                self._blocked if self._config.sinks else None,
                self._row_cache(vllm_config),
                None if vllm_config.speculative_config is None else Drafts(),
            )

    def _row_cache(self, vllm_config: VllmConfig) -> RowCache | None:
        if not self._num_row_slots:
            return None
        most = most_replayed(self._config, vllm_config)
        return RowCache(self._num_row_slots, self._block_size, most)

    @property
    def scheduler_half(self) -> SchedulerHalf:
        """Returns what the gate asks; only in the scheduler's process."""
        assert self._scheduler is not None
        return self._scheduler

    # Scheduler half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """`None` is vLLM's "not yet" for a request that has not started."""
        return (0 if self.scheduler_half.can_run(request) else None), False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external: int
    ) -> None:
        """No KV is loaded; the request runs."""
        self.scheduler_half.exports.admit(request)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Describe this step to the worker half."""
        return self.scheduler_half.build(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """Blocks may be freed at once."""
        self.scheduler_half.finish(request)
        return False, None

    # Worker half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's memory exists now: make the worker half."""
        table = StepTable.of_engine(self._engine_id)
        check = RankCheck() if self._config.check_ranks and table.export is not None else None
        self._worker = WorkerHalf(table, self._num_slots, self._exporter(table), check)

    def _exporter(self, table: StepTable) -> Exporter | None:
        """In one rank of a lane: the first of those that have the results."""
        export = self._config.schema.export
        if export is None or table.export is None or not is_first_of_equals():
            return None
        edges = {
            sink.target: (sink.port.sender(self._lane), sink.chunk_sizes)
            for sink in self._config.sinks
        }
        if not edges:
            return None
        cached = None
        if self._num_row_slots:
            num_places = self._num_row_slots * self._block_size
            cached = CachedRows(num_places, table.export.shape[1:], table.export.dtype)
        return Exporter(edges, export, self._num_rows, self._ledger, self._blocked, cached)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Runs before the forward on both model runners."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, StepMeta):
            self._worker.before_forward(connector_metadata)

    def wait_for_save(self) -> None:
        """Runs after the forward on both model runners."""
        meta = self._connector_metadata
        if self._worker is not None and isinstance(meta, StepMeta):
            self._worker.after_forward(meta)

    def shutdown(self) -> None:
        """Close the channels."""
        if self._worker is not None:
            self._worker.shutdown()
        if self._scheduler is not None:
            self._scheduler.shutdown()


def refuse_preemption(
    num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int
) -> None:
    """Refuse an engine whose KV cache cannot hold every request at full length.

    A preempted request would have to be prefilled again with codes that are no longer known.
    `num_blocks`: vLLM's first one among them, which holds nothing.
    """
    needed = max_num_seqs * -(-max_model_len // block_size)
    if num_blocks - 1 < needed:
        held = (num_blocks - 1) * block_size
        raise ValueError(
            f"the KV cache holds {held} tokens; max_num_seqs x max_model_len needs "
            f"{needed * block_size}: raise kv_cache_memory_bytes or gpu_memory_utilization, "
            "or lower one of the two"
        )
