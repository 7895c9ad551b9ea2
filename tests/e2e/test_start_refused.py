"""A stage that cannot fit ends the server before it loads, with the reason in its last words."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.server import launch

from omnistage.stages.device.memory import host_free_bytes
from omnistage.stages.diffusion.checkpoint.real_qwen_image import write_real_qwen_image

pytestmark = pytest.mark.engine

TINY = Path(__file__).parents[2] / "stage_configs" / "qwen3_omni_tiny.yaml"
REFUSED_S = 120
TIB = 1 << 40


def last_line(target: str, log: Path, *options: str) -> str:
    """Of a server that ends by itself, with exit code 1."""
    process = launch(target, log, *options).process
    try:
        assert process.wait(REFUSED_S) == 1, log.read_text()[-6000:]
    finally:
        process.kill()
    return log.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("stage", "option", "value"),
    [("thinker", "kv_cache_memory_bytes", 64 * TIB), ("code2wav", "num_slots", 1 << 30)],
)
def test_a_stage_of_qwen3_omni(
    stage: str, option: str, value: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    graph: dict[str, Any] = yaml.safe_load(TINY.read_text())
    graph["stages"][stage]["engine"][option] = value
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    said = last_line(str(path), tmp_path / "log", "--model", str(tiny_checkpoint))
    begin = f"stage {stage} ended while it loaded: exit code 1: stage {stage} does not fit on cpu: "
    assert begin in said
    assert f"lower {option}" in said


def test_a_pipeline(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_real_qwen_image(folder)
    if host_free_bytes() > 100 << 30:
        pytest.skip("this machine has enough memory for the pipeline")
    said = last_line(str(folder), tmp_path / "log", "--load-format", "dummy")
    assert "exit code 1: stage dit does not fit on c" in said
    assert "set offload: sequential or layerwise" in said
