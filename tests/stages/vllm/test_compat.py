"""What vLLM makes of our engine arguments."""

from pathlib import Path

import pytest
from vllm.config import LoadConfig
from vllm.model_executor.model_loader.weight_utils import get_quant_config

from omnistage.stages.qwen3_omni.thinker_model import thinker_config
from omnistage.stages.vllm.compat import AsyncEngineArgs, EngineArguments


@pytest.mark.parametrize("quantization", [None, "fp8_per_channel"])
def test_a_function_that_has_changed_a_quantized_models_configuration_is_not_asked_for_more(
    tiny_checkpoint: Path, quantization: str | None
) -> None:
    given = {
        "model": str(tiny_checkpoint),
        "hf_overrides": thinker_config,
        "quantization": quantization,
    }
    ours = EngineArguments(**given).create_model_config()
    assert ours.hf_config.architectures == ["OmnistageQwen3OmniThinker"]
    assert ours.hf_overrides == (thinker_config if quantization is None else {})
    if quantization is not None:
        assert get_quant_config(ours, LoadConfig()).get_name() == "online"
    theirs = AsyncEngineArgs(**given).create_model_config()
    assert theirs.compute_hash() == ours.compute_hash()
