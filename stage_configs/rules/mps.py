"""NVIDIA's MPS: what its daemon answers, and why a stage refuses shares of a GPU's multiprocessors.

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


def ask_daemon(
    command: str,
    environment: Mapping[str, str] | None = None,
    patience_s: float = CONTROL_PATIENCE_S,
) -> str | None:
    """Returns what the MPS daemon of an environment (ours if None) answers; None if there is no
    answer.
    """
    if shutil.which(CONTROL) is None:
        return None
    try:
        asked = subprocess.run(
            [CONTROL],
            input=f"{command}\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def _default_share() -> dict[str, str]:
    """Returns what a running MPS daemon gives to clients that ask for nothing."""
    answer = ask_daemon("get_default_active_thread_percentage")
    return {SHARE: answer} if answer else {}
