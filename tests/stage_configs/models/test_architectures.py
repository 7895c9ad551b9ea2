"""Architectures that vLLM does not know, found without loading anything."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.models import architectures
from omnistage.stage_configs.models.architectures import unknown_architectures, vllm_architectures
from omnistage.stage_configs.packages import VLLM_PACKAGES, installed
from omnistage.stage_configs.pick import GRAPHS

VLLM = f"vLLM {installed(*VLLM_PACKAGES)}"


def found(folder: Path, graph: str = "vllm_text", **config: Any) -> list[str]:
    (folder / "config.json").write_text(json.dumps(config))
    return unknown_architectures(load_graph(GRAPHS / f"{graph}.yaml", str(folder)))


def test_they_are_those_of_vllms_own_registry() -> None:
    from vllm.model_executor.models import registry

    assert vllm_architectures() == set(registry._VLLM_MODELS)


def test_an_unknown_one_is_told_with_its_stage(tmp_path: Path) -> None:
    says = f"{VLLM} does not know NoSuchForCausalLM (config.json)"
    assert found(tmp_path, architectures=["NoSuchForCausalLM"]) == [f"stage text: {says}"]
    assert found(tmp_path, "vllm_embedding", architectures=["NoSuchForCausalLM"]) == [
        f"stage embedding: {says}"
    ]


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen3ForCausalLM"]},
        {"architectures": ["NoSuchForCausalLM", "Qwen3ForCausalLM"]},
        {"architectures": ["NoSuchForCausalLM"], "auto_map": {"AutoModelForCausalLM": "m.M"}},
        {"architectures": ["ReformerModelWithLMHead"]},  # transformers has it
        {},
    ],
    ids=["known", "one of two", "code of its own", "of transformers", "not named"],
)
def test_what_may_run_is_no_error(config: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, **config) == []


def test_families_bring_classes_of_their_own(tmp_path: Path) -> None:
    assert found(tmp_path, "qwen3_omni_tiny", architectures=["NoSuchForCausalLM"]) == []


def test_plugins_of_others_may_teach_vllm_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architectures, "has_foreign_plugins", lambda: True)
    assert found(tmp_path, architectures=["NoSuchForCausalLM"]) == []


def test_a_dry_run_refuses_such_a_model(tmp_path: Path) -> None:
    config = {"architectures": ["NoSuchForCausalLM"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    typed = ["serve", str(tmp_path), "--port", "0", "--dry-run"]
    result = CliRunner().invoke(cli.app, typed, env={"COLUMNS": "300"})
    says = f"error: stage text: {VLLM} does not know NoSuchForCausalLM (config.json)\n"
    assert (result.exit_code, result.output) == (1, says)
