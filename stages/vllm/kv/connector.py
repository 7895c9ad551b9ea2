"""The KV connector of an engine whose keys and values leave; vLLM loads it by name.

Requests with `RequestOptions.kv` are its own; others run as without it.
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
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from omnistage.stages.vllm.kv.cached_kv import CachedKv, in_order
from omnistage.stages.vllm.kv.kv_meta import KvMeta
from omnistage.stages.vllm.kv.kv_scheduling import KvScheduling
from omnistage.stages.vllm.kv.kv_sender import KvSender
from omnistage.stages.vllm.step.step_connector import StepConnector
from omnistage.stages.worker.ledger import Ledger, lane_ledger

IDLE_WAIT_S = 0.002


class KvConnector(StepConnector):
    """Keys and values of prompts out."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._layers = vllm_config.compilation_config.static_forward_context
        self._num_blocks: int = kv_cache_config.num_blocks
        groups = kv_cache_config.kv_cache_groups
        specs = [group.kv_cache_spec for group in groups]
        if len(specs) != 1 or type(specs[0]) is not FullAttentionSpec:
            kinds = ", ".join(type(spec).__name__ for spec in specs)
            raise ValueError(
                f"the model's layers have KV caches of {kinds}; keys and values leave a stage if "
                "it has one, FullAttentionSpec"
            )
        self._spec = specs[0]
        self._scheduling = KvScheduling()
        self._sender: KvSender | None = None
        self._opened: set[str] = set()  # requests that have begun to leave
        self._ended: set[str] = set()  # of those, the ones that have ended in the scheduler

    # Scheduler half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Nothing comes in."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external: int
    ) -> None:
        """Nothing comes in."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Describe this step to the worker half."""
        return self._scheduling.build(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """Blocks are held until they are sent."""
        return self._scheduling.finish(request), None

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """The worker half says whose blocks may be freed."""
        self._scheduling.sent(connector_output.finished_sending or ())

    def has_pending_push_work(self) -> bool:
        """Steps go on while blocks are held, since each asks whether they still are."""
        return self._scheduling.is_holding

    # Worker half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's memory exists now, and holds nothing yet."""
        names = in_order(kv_caches)
        cached = CachedKv(
            self._layers[names[0]],
            [kv_caches[name] for name in names],
            self._num_blocks,
            self._spec.block_size,
            (self._spec.num_kv_heads, self._spec.head_size),
        )
        senders = {sink.target: sink.port.sender(self._lane) for sink in self._config.sinks}
        ledger = None
        if self._config.ledger:
            ledger = Ledger(lane_ledger(Path(self._config.ledger), self._lane))
        self._sender = KvSender(senders, cached, ledger)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Runs before the forward on both model runners."""
        super().bind_connector_metadata(connector_metadata)
        if self._sender is None or not isinstance(connector_metadata, KvMeta):
            return
        for request_id in (*connector_metadata.dropped, *connector_metadata.preempted):
            self._sender.drop(request_id)
        self._opened.difference_update(connector_metadata.preempted)

    def wait_for_save(self) -> None:
        """Runs after the forward on both model runners."""
        meta = self._connector_metadata
        if self._sender is None or not isinstance(meta, KvMeta):
            return
        for due in meta.due:
            self._opened.add(due.request_id)
            self._sender.start(due)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests that have ended and left; an idle step waits a little for one."""
        self._ended |= finished_req_ids & self._opened
        if self._sender is None or not self._ended:
            return None, None
        meta = self._connector_metadata
        if isinstance(meta, KvMeta) and meta.is_idle and self._ended <= self._sender.sending:
            self._sender.wait(IDLE_WAIT_S)
        left = self._ended - self._sender.sending
        self._ended -= left
        self._opened -= left
        return left, None

    def shutdown(self) -> None:
        """Close the channels."""
        if self._sender is not None:
            self._sender.close()
