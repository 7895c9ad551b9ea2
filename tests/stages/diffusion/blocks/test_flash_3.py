"""FlashAttention 3 as an operator: beside torch's attention, with vLLM's function or a stand-in."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from support.kernels import attention, relative_error
from torch import Tensor

from omnistage.stages.diffusion.blocks.flash_3 import flash_3, flash_3_problem

CUDA = torch.device("cuda")


def rows(num_tokens: int, num_rows: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(num_tokens)
    return torch.randn(num_rows, num_tokens, 3, 16, dtype=dtype)


def vllm_with(**parts: Any) -> ModuleType:
    made = ModuleType("vllm.vllm_flash_attn")
    vars(made).update(parts)
    return made


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor,
    causal: bool,
    fa_version: int,
) -> Tensor:
    """What vLLM's function means, sequence by sequence."""
    assert (causal, fa_version) == (False, 3)
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    sizes_q, sizes_k = (one.diff().tolist() for one in (cu_seqlens_q, cu_seqlens_k))
    assert (max(sizes_q), max(sizes_k)) == (max_seqlen_q, max_seqlen_k)
    parts = zip(
        query.split(sizes_q),
        key.split(sizes_k),
        value.split(sizes_k),
        strict=True,
    )
    return torch.cat([attention(*(one[None] for one in part))[0] for part in parts])


@pytest.mark.parametrize("num_keys", [5, 7])
def test_each_row_attends_to_its_own_tokens(num_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = vllm_with(flash_attn_varlen_func=packed_attention)
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", stand_in)
    query, key, value = rows(5), rows(num_keys), rows(num_keys) + 1
    torch.testing.assert_close(flash_3(query, key, value), attention(query, key, value))


def test_it_is_a_part_of_a_compiled_block(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = vllm_with(flash_attn_varlen_func=packed_attention)
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", stand_in)

    def block(inputs: Tensor) -> Tensor:
        attended: Tensor = flash_3(inputs, inputs, inputs)
        return attended * 2

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for num_tokens in (5, 9):
        inputs = rows(num_tokens)
        torch.testing.assert_close(compiled(inputs), 2 * attention(inputs, inputs, inputs))


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flash_3_problem(torch.device("cpu")) == "it runs on a GPU, not on cpu"
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", None)
    assert "vLLM's kernels are missing" in str(flash_3_problem(CUDA))
    asked = []

    def reason(version: int) -> str:
        asked.append(version)
        return "too old a GPU"

    stand_in = vllm_with(fa_version_unsupported_reason=reason)
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", stand_in)
    assert flash_3_problem(CUDA) == "too old a GPU"
    assert asked == [3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU of compute capability 9")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_as_near_to_the_exact_attention_as_torchs(dtype: torch.dtype) -> None:
    if problem := flash_3_problem(CUDA):
        pytest.skip(problem)
    torch.manual_seed(0)
    made = [torch.randn(2, 333, 3, 128, device=CUDA, dtype=dtype) for _ in range(3)]
    exact = attention(*(one.double() for one in made))
    off = [relative_error(found, exact) for found in (flash_3(*made), attention(*made))]
    assert off[0] < 1.5 * off[1] < 0.01
