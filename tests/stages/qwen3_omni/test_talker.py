"""The talker's engine arguments, without an engine."""

import json
from pathlib import Path

import pytest

from omnistage.stages.qwen3_omni.step_schema import TALKER_COLUMNS
from omnistage.stages.qwen3_omni.talker import TalkerOptions, generation_config_folder
from omnistage.stages.qwen3_omni.talker_model import talker_config
from omnistage.stages.vllm.compat import AsyncEngineArgs
from omnistage.stages.vllm.ports import BridgeConfig
from omnistage.stages.vllm.step_schema import StepSchema


@pytest.fixture
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_generation_config_ends_at_the_talker_s_own_id(cache_root: Path) -> None:
    folder = generation_config_folder(4198)
    assert folder.is_relative_to(cache_root)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 4198
    assert generation_config_folder(4198) == folder
    assert generation_config_folder(4199) != folder
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "talker-eos-4199"}


def test_an_option_that_the_talker_does_not_know_or_cannot_use_is_refused() -> None:
    assert TalkerOptions.of({}).prefill_part is None
    assert TalkerOptions.of({"prefill_part": 0}).prefill_part == 0
    for wrong in ({"prefil_part": 64}, {"prefill_part": -1}, {"prefill_part": "many"}):
        with pytest.raises(ValueError, match="options of the talker: "):
            TalkerOptions.of(wrong)


@pytest.mark.engine
def test_compiled_code_is_found_again_at_the_next_start(
    cache_root: Path, tiny_checkpoint: Path
) -> None:
    """vLLM's key must not change with a run's folders, or every start compiles anew."""
    keys = set()
    for run in ("first", "second"):
        bridge = BridgeConfig(StepSchema(TALKER_COLUMNS), ledger=f"/{run}/talker.held")
        arguments = AsyncEngineArgs(
            model=str(tiny_checkpoint),
            skip_tokenizer_init=True,
            generation_config=str(generation_config_folder(4198)),
            hf_overrides=talker_config,
            dtype="float32",
            max_model_len=256,
            kv_transfer_config={
                "kv_connector": "OmnistageConnector",
                "kv_connector_module_path": "omnistage.stages.vllm.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": bridge.to_config(),
            },
        )
        keys.add(arguments.create_engine_config().compute_hash())
    assert len(keys) == 1
