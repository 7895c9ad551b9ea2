"""The environment that the processes of a stage have beside their server's."""

import os
from collections.abc import Sequence
from pathlib import Path

from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.gpus import gpu_environment, used_gpus
from omnistage.stage_configs.rules.parallel import waiting_environment


def stage_environment(spec: StageSpec, gpus: Sequence[int]) -> dict[str, str]:
    """Returns what the process of a stage's replica with these GPUs adds to its environment.

    Triton's cache is named even where it is the default: torch.compile moves an unnamed one at the
    moment of its first kernel, which a start that finds compiled code reaches at another time than
    one that does not. Kernels of the first would be compiled again by the second, for 40 s.
    """
    triton = os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache")
    own = {key: str(value) for key, value in spec.environment.items()}
    waiting = {} if used_gpus(tuple(gpus)) else waiting_environment(spec.engine)
    return {"TRITON_CACHE_DIR": triton, **gpu_environment(gpus), **waiting, **own}
