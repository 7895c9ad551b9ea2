"""Shares of a GPU's multiprocessors under NVIDIA MPS, and why a stage refuses them.

Under a share, cuBLAS picks kernels that leave parts of their results unwritten. docs/mps.md has the
measurements and a reproduction without vLLM.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ALLOW = "OMNISTAGE_ALLOW_MPS_SHARES"
WHOLE = 100.0
CONTROL = "nvidia-cuda-mps-control"
CONTROL_PATIENCE_S = 10.0


def share_problem(environment: Mapping[str, object]) -> str:
    """Why a process with these variables cannot be trusted; empty if it can.

    Setting OMNISTAGE_ALLOW_MPS_SHARES=1 for the server switches this off, for measurements.
    """
    value = environment.get(SHARE)
    if value is None or os.environ.get(ALLOW) == "1":
        return ""
    try:
        share = float(str(value))
    except ValueError:
        return f"{SHARE} is {value!r}; it must be a number"
    if share >= WHOLE:
        return ""
    return (
        f"{SHARE} is {share:g}: with fewer multiprocessors than the GPU has, cuBLAS leaves parts "
        "of matrix products unwritten, so answers are wrong (docs/mps.md); leave it out, or set it "
        "to 100"
    )


def inherited_share_problem() -> str:
    """The same of what a stage gets unasked: this process's variables, MPS's own default."""
    return share_problem(os.environ) or share_problem(_default_share())


def _default_share() -> dict[str, str]:
    """What a running MPS daemon gives to clients that ask for nothing."""
    if shutil.which(CONTROL) is None:
        return {}
    try:
        asked = subprocess.run(
            [CONTROL],
            input="get_default_active_thread_percentage\n",
            capture_output=True,
            text=True,
            timeout=CONTROL_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    answer = asked.stdout.strip()
    return {SHARE: answer} if asked.returncode == 0 and answer else {}
