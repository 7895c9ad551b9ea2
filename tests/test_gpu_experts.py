"""`make gpu-experts` on a CPU: both loads run beside each other, and a wrong output is found."""

import os
import subprocess
import sys
from pathlib import Path

import gpu_experts
import pytest
import torch

SCRIPT = Path(gpu_experts.__file__)


@pytest.mark.slow
def test_the_tiny_run_measures_both_and_compares_our_kernels_with_torch() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent)}
    command = [sys.executable, str(SCRIPT), "--tiny", "--seconds", "0.01"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["5"]] == ["plain", "ours"]
    assert lines[-1] == ["right"]


class Pretending:
    """Both processes: what the experts of each way give is given."""

    def __init__(self, outputs: dict[str, torch.Tensor]) -> None:
        self._outputs = outputs
        self._asked: dict[str, tuple[object, ...]] = {}

    def ask(self, kind: str, *task: object) -> None:
        self._asked[kind] = task

    def answer(self, kind: str) -> object:
        name, _, way = self._asked[kind]
        return self._outputs.get(str(way)) if name == "prepare" else 1.0


@pytest.mark.parametrize(("value", "is_right"), [(1.0, True), (1.01, False), (float("nan"), False)])
def test_an_output_that_is_off_is_wrong(
    value: float, is_right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {"vLLM's": torch.ones(4), "ours": torch.full((4,), value)}
    pairs = Pretending(outputs)
    assert gpu_experts.compare(pairs, [64], 0.0, list(outputs)) == is_right  # type: ignore[arg-type]
    assert ("WRONG" in capsys.readouterr().out) != is_right
