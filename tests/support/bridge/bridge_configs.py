"""vLLM's configuration of a tiny talker with a bridge."""

from pathlib import Path
from typing import Any

from vllm.config import VllmConfig

from omnistage.stages.qwen3_omni.talker_model import talker_config
from omnistage.stages.vllm.compat import AsyncEngineArgs
from omnistage.stages.vllm.step.ports import BridgeConfig


def bridged_config(model: Path, bridge: BridgeConfig, **arguments: Any) -> VllmConfig:
    """Returns the configuration of an engine that is not started."""
    given = AsyncEngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        hf_overrides=talker_config,
        dtype="float32",
        kv_transfer_config={
            "kv_connector": "OmnistageConnector",
            "kv_connector_module_path": "omnistage.stages.vllm.bridge.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": bridge.to_config(),
        },
        **arguments,
    )
    return given.create_engine_config()
