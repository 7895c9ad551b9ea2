"""Where tests of Triton kernels run, on a GPU or with TRITON_INTERPRET=1 on a CPU; beside what."""

import os

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
torch.backends.cudnn.allow_tf32 = False  # what kernels are compared with is float32
RUNS_KERNELS = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (IS_INTERPRETED or torch.cuda.is_available()), reason="a GPU or TRITON_INTERPRET=1"
    ),
]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of what is expected."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Torch's, of [B, tokens, heads, size]; each token sees all keys."""
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2)
