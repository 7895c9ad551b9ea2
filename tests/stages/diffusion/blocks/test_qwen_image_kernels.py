"""Kernels of Qwen-Image's blocks; without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

from itertools import product
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_qwenimage import (
    QwenEmbedRope,
    QwenImageTransformerBlock,
)
from peft import LoraConfig, inject_adapter_in_model
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS, attention, relative_error
from torch.nn.functional import linear

from omnistage.stages.diffusion.blocks.float8 import in_float8
from omnistage.stages.diffusion.loading.float8 import quantize_block

pytestmark = RUNS_KERNELS
SIDE = 4
NUM_IMAGE = SIDE * SIDE
HALVES = (torch.bfloat16, torch.float16)
TEXTS, HEADS = [(1, 1), (1, 7), (2, 5)], [(3, 32), (8, 16), (9, 16)]
JOINED = [
    (*text, *head)
    for text, head in (zip(TEXTS, HEADS, strict=True) if IS_INTERPRETED else product(TEXTS, HEADS))
]
KERNELS = "omnistage.stages.diffusion.blocks.qwen_image"


@pytest.fixture(autouse=True)
def on_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{KERNELS}.DEVICE", DEVICE.type)


def make_block(
    heads: int = 3, size: int = 32, dtype: torch.dtype = torch.bfloat16, is_float8: bool = False
) -> Any:
    torch.manual_seed(0)
    block: Any = QwenImageTransformerBlock(heads * size, heads, size)
    for name, parameter in block.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
        elif parameter.ndim == 2:
            parameter.data.normal_(0, parameter.shape[1] ** -0.5)
    block.requires_grad_(False).to(DEVICE, dtype)
    if is_float8:
        quantize_block(block, DEVICE)
    return block


def inputs_of(block: Any, num_samples: int, num_text: int) -> dict[str, Any]:
    """Arguments of a block for random tokens; the first text has one token less, if there are."""
    width, size = block.dim, block.attention_head_dim
    dtype = block.attn.norm_q.weight.dtype
    rope = QwenEmbedRope(10000, [size // 4, size // 4, size // 2], scale_rope=True)
    torch.manual_seed(1)
    mask = torch.ones(num_samples, num_text, dtype=torch.bool)
    mask[0, num_text - 1 :] = num_text == 1
    return {
        "hidden_states": 2 * torch.randn(num_samples, NUM_IMAGE, width).to(DEVICE, dtype),
        "encoder_hidden_states": torch.randn(num_samples, num_text, width).to(DEVICE, dtype),
        "encoder_hidden_states_mask": mask.to(DEVICE) if num_samples > 1 else None,
        "temb": torch.randn(num_samples, width).to(DEVICE, dtype),
        "image_rotary_emb": rope([[(1, SIDE, SIDE)]], max_txt_seq_len=num_text, device=DEVICE),
    }


def attended(block: Any, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    names = [name for name in given if name != "temb"]
    both: tuple[torch.Tensor, torch.Tensor] = block.attn(**{name: given[name] for name in names})
    return both


@torch.inference_mode()
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("num_samples", "num_text", "heads", "size"), JOINED)
def test_queries_keys_and_values_are_diffusers_own(
    monkeypatch: pytest.MonkeyPatch,
    num_samples: int,
    num_text: int,
    heads: int,
    size: int,
    dtype: torch.dtype,
) -> None:
    """What comes to the attention, with the mask that comes with it."""
    from omnistage.stages.diffusion.blocks.qwen_image import JoinedAttention, fuse

    came: list[tuple[torch.Tensor, ...]] = []

    def attend(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options["attn_mask"] is not None or num_samples == 1
        came.append((*tensors, options["attn_mask"]))
        return tensors[2]

    for module in (KERNELS, "diffusers.models.transformers.transformer_qwenimage"):
        monkeypatch.setattr(f"{module}.dispatch_attention_fn", attend)
    block = make_block(heads, size, dtype)
    given = inputs_of(block, num_samples, num_text)
    expected = attended(block, given)
    fuse(block)
    assert type(block.attn.processor) is JoinedAttention
    found = attended(block, given)
    exact, ours = came
    is_cut = IS_INTERPRETED and dtype is torch.bfloat16  # there it is not rounded, but cut off
    for one, other in zip(ours[:3], exact[:3], strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype == dtype
        assert one.is_contiguous()
        assert relative_error(one, other) < (0.02 if is_cut else 1e-4)
        assert is_cut or (one != other).float().mean() < 2e-3  # sums in another order
    assert torch.equal(ours[2], exact[2])
    if num_samples > 1:
        assert torch.equal(ours[3], exact[3])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@torch.inference_mode()
@pytest.mark.parametrize("num_samples", [1, 2])
def test_flash_attention_3_attends_where_there_is_no_mask(
    monkeypatch: pytest.MonkeyPatch, num_samples: int
) -> None:
    from omnistage.stages.diffusion.blocks.qwen_image import attend_by_flash_3, fuse

    shapes: list[torch.Size] = []

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        shapes.append(tensors[0].shape)
        return attention(*tensors)

    monkeypatch.setattr(f"{KERNELS}.flash_3", attend)
    block = make_block()
    given = inputs_of(block, num_samples, 6)
    fuse(block)
    expected = block(**given)
    assert not shapes
    attend_by_flash_3(block)
    for one, other in zip(block(**given), expected, strict=True):
        assert relative_error(one, other) < 0.01
    assert shapes == ([(1, 6 + NUM_IMAGE, 3, 32)] if num_samples == 1 else [])


@torch.inference_mode()
@pytest.mark.parametrize("num_samples", [1, 2])
@pytest.mark.parametrize("is_float8", [False, True])
def test_a_block_is_as_far_from_the_exact_one_as_diffusers_is(
    is_float8: bool, num_samples: int
) -> None:
    from omnistage.stages.diffusion.blocks.qwen_image import fuse

    block = make_block(is_float8=is_float8)
    given = inputs_of(block, num_samples, 6)
    expected = block(**given)
    fuse(block)
    for mlp in (block.img_mlp, block.txt_mlp):  # GELU is computed where its outcome is rounded
        assert mlp.net[0].leaves_gelu is is_float8
    for one, other in zip(block(**given), expected, strict=True):
        assert one.dtype == other.dtype
        assert relative_error(one, other) < (0.04 if is_float8 else 0.01)


@torch.inference_mode()
def test_a_block_that_was_fused_can_be_fused_again_in_float8() -> None:
    from omnistage.stages.diffusion.blocks.qwen_image import fuse

    block = make_block(is_float8=True)
    given = inputs_of(block, 1, 6)
    expected = block(**given)
    again = make_block()
    fuse(again)
    quantize_block(again, DEVICE)
    fuse(again)
    assert again.img_mlp.net[0].leaves_gelu
    for one, other in zip(again(**given), expected, strict=True):
        assert relative_error(one, other) < 0.04


@torch.inference_mode()
@pytest.mark.skipif(IS_INTERPRETED, reason="torch compiles no kernel that is interpreted")
@pytest.mark.parametrize("is_float8", [False, True])
def test_a_block_is_compiled_as_a_whole_for_texts_of_any_length(is_float8: bool) -> None:
    from omnistage.stages.diffusion.blocks.qwen_image import fuse

    block = make_block(is_float8=is_float8)
    fuse(block)
    compiled: Any = torch.compile(block, fullgraph=True, dynamic=True)
    for num_text in (6, 9):
        given = inputs_of(block, 1, num_text)
        for one, other in zip(compiled(**given), block(**given), strict=True):
            assert relative_error(one, other) < (0.04 if is_float8 else 0.01)


@torch.inference_mode()
def test_adapters_work_as_without_kernels() -> None:
    from omnistage.stages.diffusion.blocks.qwen_image import fuse

    names = ["to_q", "add_v_proj", "img_mlp.net.0.proj", "img_mod.1"]
    config = LoraConfig(r=4, target_modules=names, init_lora_weights=False)
    made = []
    for is_fused in (False, True):
        block = make_block()
        if is_fused:
            fuse(block)
        torch.manual_seed(2)
        inject_adapter_in_model(config, block)
        block.to(torch.bfloat16)
        made.append(block(**inputs_of(block, 1, 6)))
    plain = make_block()
    for one, other, bare in zip(*made, plain(**inputs_of(plain, 1, 6)), strict=True):
        assert relative_error(one, other) < 0.01 < relative_error(bare, other)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(96, 48), (512, 8), (1040, 13)])
def test_the_product_of_a_row_is_the_exact_one_rounded(
    num_inputs: int, num_outputs: int, has_bias: bool, dtype: torch.dtype
) -> None:
    from omnistage.stages.diffusion.blocks.qwen_image_kernels import multiply_row

    torch.manual_seed(0)
    row = torch.randn(1, num_inputs, dtype=dtype, device=DEVICE)
    weight = torch.randn(num_outputs, num_inputs, dtype=dtype, device=DEVICE)
    bias = torch.randn(num_outputs, dtype=dtype, device=DEVICE) if has_bias else None
    exact = linear(row.double(), weight.double(), None if bias is None else bias.double())
    found = multiply_row(row, weight, bias)
    assert (found.shape, found.dtype) == (exact.shape, dtype)
    assert relative_error(found, exact) < torch.finfo(dtype).eps
    eight, scale = in_float8(weight)
    near = linear(row.double(), eight.double() * scale, None if bias is None else bias.double())
    found = multiply_row(row, eight, bias, scale.t().contiguous())
    assert found.dtype == dtype
    assert relative_error(found, near) < torch.finfo(dtype).eps
