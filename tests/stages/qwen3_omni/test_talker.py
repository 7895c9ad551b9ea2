"""The talker's engine arguments, without an engine."""

from pathlib import Path

import pytest
from support.bridge.bridge_configs import bridged_config

from omnistage.stages.qwen3_omni.step_schema import TALKER_COLUMNS
from omnistage.stages.speech.talker_options import generation_config_folder
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.step_schema import StepSchema


@pytest.fixture
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.engine
def test_compiled_code_is_found_again_at_the_next_start(
    cache_root: Path, tiny_checkpoint: Path
) -> None:
    """vLLM's key must not change with a run's folders, or every start compiles anew."""
    keys = set()
    for run in ("first", "second"):
        bridge = BridgeConfig(StepSchema(TALKER_COLUMNS), ledger=f"/{run}/talker.held")
        folder = str(generation_config_folder(4198))
        config = bridged_config(
            tiny_checkpoint, bridge, generation_config=folder, max_model_len=256
        )
        keys.add(config.compute_hash())
    assert len(keys) == 1
