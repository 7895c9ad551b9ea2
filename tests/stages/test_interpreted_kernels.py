"""Triton's kernels, run by its interpreter: what they compute is checked where no GPU is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
KERNELS = (
    "speech/test_code_predictor_triton.py",
    "vocoder/layers/test_fused_sound.py",
    "qwen2_5_omni/test_bigvgan_fused.py",
    "qwen2_5_omni/test_fused_dit.py",
)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right_in_the_interpreter(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / name)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
