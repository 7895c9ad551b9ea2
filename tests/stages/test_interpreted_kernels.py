"""Triton's kernels, run by its interpreter: what they compute is checked where no GPU is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
KERNELS = (
    "speech/test_code_predictor_triton.py",
    "vocoder/layers/test_fused_sound.py",
    "vocoder/layers/test_fused_transformer.py",
    "vocoder/layers/test_fused_upsampling.py",
    "qwen2_5_omni/token2wav/test_bigvgan_fused.py",
    "qwen2_5_omni/token2wav/test_fused_dit.py",
    "diffusion/blocks/test_float8_kernels.py",
    "diffusion/blocks/test_qwen_image_kernels.py",
    "vllm/models/test_experts_kernel.py",
)


@pytest.mark.slow
def test_kernels_are_right_in_the_interpreter() -> None:
    """Of each file something has run: none of them skips all that it has."""
    command = [sys.executable, "-m", "pytest", "-rA", "-q", "-p", "no:cacheprovider"]
    command += [str(TESTS / name) for name in KERNELS]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for name in KERNELS:
        assert re.search(rf"^PASSED \S*{name}::", done.stdout, re.MULTILINE), name
