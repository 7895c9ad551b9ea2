"""FlashAttention 3 by the kernels that come with vLLM, as an operator that torch compiles.

Attention of half precision without a mask, on GPUs of compute capability 9.
"""

from functools import lru_cache

import torch
from torch import Tensor


def flash_3_problem(device: torch.device) -> str | None:
    """Why a device has no such kernels; None if it has."""
    if device.type != "cuda":
        return f"it runs on a GPU, not on {device.type}"
    try:
        from vllm.vllm_flash_attn import fa_version_unsupported_reason
    except ImportError as error:
        return f"vLLM's kernels are missing: {error}"
    reason: str | None = fa_version_unsupported_reason(3)
    return reason


@torch.library.custom_op("omnistage::flash_3", mutates_args=())
def flash_3(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention, all [B, tokens, heads, size], of the same B: each token sees all keys."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    num_rows, num_queries = query.shape[:2]
    num_keys = key.shape[1]
    attended: Tensor = flash_attn_varlen_func(
        query.flatten(0, 1),
        key.flatten(0, 1),
        value.flatten(0, 1),
        max_seqlen_q=num_queries,
        cu_seqlens_q=_starts(num_rows, num_queries, query.device),
        max_seqlen_k=num_keys,
        cu_seqlens_k=_starts(num_rows, num_keys, query.device),
        causal=False,
        fa_version=3,
    )
    return attended.view_as(query)


@flash_3.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.empty_like(query)


@lru_cache(maxsize=64)
def _starts(num_rows: int, num_tokens: int, device: torch.device) -> Tensor:
    """Where each row's tokens begin, int32 [rows + 1]."""
    return torch.arange(num_rows + 1, dtype=torch.int32, device=device) * num_tokens
