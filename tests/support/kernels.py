"""Where tests of Triton kernels run: on a GPU, or with TRITON_INTERPRET=1 on a CPU."""

import os

import pytest
import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
torch.backends.cudnn.allow_tf32 = False  # what kernels are compared with is float32
RUNS_KERNELS = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (IS_INTERPRETED or torch.cuda.is_available()), reason="a GPU or TRITON_INTERPRET=1"
    ),
]
