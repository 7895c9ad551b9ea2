"""A stage that cannot start ends the server, with the reason in its last words."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file
from support.servers.server import launch

from omnistage.stages.device.memory import host_free_bytes
from omnistage.stages.diffusion.checkpoint.real_qwen_image import write_real_qwen_image

pytestmark = pytest.mark.engine

TINY = Path(__file__).parents[3] / "stage_configs" / "qwen3_omni_tiny.yaml"
REFUSED_S = 120
TIB = 1 << 40


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a server leaves what a stage said."""
    vllm_cache = os.environ.get("VLLM_CACHE_ROOT", Path.home() / ".cache" / "vllm")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(vllm_cache))  # what it has compiled stays known
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "omnistage" / "logs"


def last_line(target: str, log: Path, *options: str) -> str:
    """Of a server that ends by itself, with exit code 1."""
    process = launch(target, log, *options).process
    try:
        assert process.wait(REFUSED_S) == 1, log.read_text()[-6000:]
    finally:
        process.kill()
    return log.read_text().splitlines()[-1]


def thinker_alone(folder: Path, model: Path, **engine: Any) -> str:
    """A graph file with the tiny thinker, with other arguments of its engine."""
    thinker = yaml.safe_load(TINY.read_text())["stages"]["thinker"]
    thinker["engine"] |= engine
    only = {"model": str(model), "stages": {"thinker": thinker}, "outputs": {"text": "thinker"}}
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(only))
    return str(path)


def test_a_stage_of_qwen3_omni(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The thinker, alone; tests/stages/vocoder/test_start.py has what a vocoder says."""
    graph = thinker_alone(tmp_path, tiny_checkpoint, kv_cache_memory_bytes=64 * TIB)
    said = last_line(graph, tmp_path / "log")
    begin = "stage thinker ended while it loaded: exit code 1: stage thinker does not fit on cpu: "
    assert begin in said
    assert "lower kv_cache_memory_bytes" in said


def test_a_pipeline(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_real_qwen_image(folder)
    if host_free_bytes() > 100 << 30:
        pytest.skip("this machine has enough memory for the pipeline")
    said = last_line(str(folder), tmp_path / "log", "--load-format", "dummy")
    assert "exit code 1: stage dit does not fit on c" in said
    assert "set offload: sequential or layerwise" in said


def test_an_engine_whose_checkpoint_lacks_weights(
    tiny_checkpoint: Path, tmp_path: Path, logs: Path
) -> None:
    """The reason is the engine's own, and its traceback is in a file."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["thinker.model.layers.0.input_layernorm.weight"]
    save_file(weights, folder / "model.safetensors")
    said = last_line(thinker_alone(tmp_path, folder), tmp_path / "log")
    assert "stage thinker ended while it loaded: exit code 1: " in said
    assert "were not initialized from checkpoint" in said
    assert said.endswith("fetch it again, or correct `model`")
    log = (tmp_path / "log").read_text()
    assert "stage thinker: reading weights" in log
    assert "Traceback" not in log
    assert str(logs / "thinker.log") in log
    assert "Traceback" in (logs / "thinker.log").read_text()


def test_a_model_runner_that_needs_triton(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Triton computes on GPUs only: vLLM's second runner does not run on a CPU."""
    second = ("--stage", "thinker.environment.VLLM_USE_V2_MODEL_RUNNER=1")
    said = last_line(thinker_alone(tmp_path, tiny_checkpoint), tmp_path / "log", *second)
    assert "stage thinker ended while it loaded" in said
    assert "Model Runner V2 requires Triton" in said
