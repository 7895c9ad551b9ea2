"""Reads the configuration of our KV connectors, which take data of steps and not of layers."""

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.forward_context import ForwardContext
from vllm.v1.request import Request

from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.ranks import own_lane


class StepConnector(KVConnectorBase_V1, SupportsHMA):
    """Reads our configuration; a step's data comes and goes with its metadata."""

    requires_kv_delivery = False

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._config = BridgeConfig.from_config(extra)
        self._lane = own_lane(vllm_config)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        """Return what `request_finished` does: the engines have one group of layers."""
        is_held, _ = self.request_finished(request, block_ids[0])
        return is_held, None

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        """Do nothing: since vLLM 0.32 it runs after the forward, too late for inputs."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: it is skipped when a full CUDA graph replays."""

    def save_kv_layer(self, *args: object, **kwargs: object) -> None:
        """Do nothing: it is skipped when a full CUDA graph replays."""
