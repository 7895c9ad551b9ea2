"""The fused layers against the exact ones; without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

from typing import Any

import numpy as np
import pytest
import torch
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS
from support.models.token2wav import make_speakers, make_token2wav, random_codes
from torch.nn import functional

from omnistage.stages.qwen2_5_omni.token2wav.dit import BlockDiT
from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import (
    COLUMNS,
    NORM_EPS,
    Window,
    make_block_list,
)
from omnistage.stages.qwen2_5_omni.token2wav.dit_graphs import StaticBlocks
from omnistage.stages.qwen2_5_omni.token2wav.dit_layers import ExactLayers

pytestmark = RUNS_KERNELS
VOICE = make_speakers()["Ethan"]
LOW = torch.bfloat16
TOKEN2WAV = "omnistage.stages.qwen2_5_omni.token2wav"


def make_net(dtype: torch.dtype) -> Any:
    """Its own, with five layers, of which the middle one looks right and the outer ones left."""
    net = make_token2wav(8, is_deep=False).code2wav_dit_model.to(DEVICE)
    for layer in net.transformer_blocks:
        layer.attn.to(dtype)
        layer.ff.to(dtype)
    return net


def fused(dit: BlockDiT, net: Any) -> BlockDiT:
    """It with fused layers, of whatever dtype its weights are."""
    from omnistage.stages.qwen2_5_omni.token2wav.fused_dit import FusedLayers

    dit._layers = FusedLayers(net, dit._tables)
    return dit


def window(dit: BlockDiT, num_blocks: int, num_past: int, seed: int) -> Window:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(num_blocks, 24, 80, generator=generator).to(DEVICE)
    codes = random_codes(12 * num_blocks - 5, seed)[:, 0].astype(np.int64)
    voice = dit.voice(VOICE["cond"].to(DEVICE), VOICE["ref_mel"].to(DEVICE))
    past, new = state.tensor_split([num_past])
    return Window(past, new, codes, 3 * seed, seed % len(dit.times.values), voice)


def some_windows(dit: BlockDiT) -> list[Window]:
    sizes = [(3, 2), (1, 0)] if IS_INTERPRETED else [(4, 2), (2, 1), (1, 0)]
    return [window(dit, *size, seed) for seed, size in enumerate(sizes)]


@pytest.mark.skipif(not IS_INTERPRETED, reason="a GPU's products are TF32")
@torch.inference_mode()
def test_fused_layers_equal_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several rows a program: the interpreter's time goes by programs."""
    monkeypatch.setattr(f"{TOKEN2WAV}.dit_kernels.FEW_ROWS", 0)
    net = make_net(torch.float32)
    exact = BlockDiT(net)
    windows = some_windows(exact)
    expected = exact.velocities(windows)
    for found, other in zip(fused(BlockDiT(net), net).velocities(windows), expected, strict=True):
        assert found.shape == other.shape
        assert (found - other).abs().max() < 1e-5 * other.abs().max()


@pytest.mark.parametrize("few_rows", [0, 2048], ids=["four rows a program", "one"])
@pytest.mark.parametrize("has_branch", [False, True])
@torch.inference_mode()
def test_the_norm_of_a_branch_s_sum_is_scaled_and_shifted_by_each_block_s_time(
    has_branch: bool, few_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnistage.stages.qwen2_5_omni.token2wav.dit_kernels import Branch, Norm, modulate

    monkeypatch.setattr(f"{TOKEN2WAV}.dit_kernels.FEW_ROWS", few_rows)
    times, rows, width = torch.tensor([3, 0, 2]), 8, 48
    generator = torch.Generator().manual_seed(0)
    hidden, added = torch.randn(2, len(times) * rows, width, generator=generator).to(DEVICE)
    scale, shift, gate = torch.randn(3, 4, width, generator=generator).to(DEVICE)
    table = torch.zeros(len(times), len(COLUMNS) + 2, dtype=torch.int32, device=DEVICE)
    table[:, COLUMNS.time] = times
    at = times.repeat_interleave(rows).to(DEVICE)
    states = hidden + gate[at] * added if has_branch else hidden.clone()
    expected = functional.layer_norm(states, [width], eps=NORM_EPS) * (1 + scale[at]) + shift[at]
    branch = Branch(added, gate) if has_branch else None
    for keeps_hidden, left in ((False, hidden.clone()), (True, states)):
        norm = Norm(scale, shift)
        found = modulate(
            hidden, table, rows, norm, torch.float32, branch, keeps_hidden=keeps_hidden
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(hidden, left, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_attention_reads_nothing_behind_the_last_block() -> None:
    """Compares a stream with fewer frames than a tile has."""
    from omnistage.stages.qwen2_5_omni.token2wav.dit_kernels import attend

    num_blocks, frames, num_heads, size = 2, 24, 2, 16
    num_rows = 2 * num_blocks * frames
    memory = torch.full((num_rows + frames, 3 * num_heads * size), float("nan"), device=DEVICE)
    memory[:num_rows] = torch.randn(memory[:num_rows].shape)
    table = torch.zeros(num_blocks, len(COLUMNS) + 2, dtype=torch.int32, device=DEVICE)
    table[:, COLUMNS.num_frames] = frames
    table[:, COLUMNS.left] = torch.tensor([1, 0])  # both look at the other
    cos, sin = torch.rand(2, 1, frames, size).to(DEVICE)
    output = attend(memory[:num_rows], num_heads, num_blocks, table, cos, sin, COLUMNS.left)
    assert output.isfinite().all()


@torch.inference_mode()
def test_blocks_among_others_are_computed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with several rows a program, as of many blocks."""
    monkeypatch.setattr(f"{TOKEN2WAV}.dit_kernels.FEW_ROWS", 0)
    counts = (3, 4, 6) if IS_INTERPRETED else (6, 6, 9)
    num_blocks = counts[-1]
    net = make_net(torch.float32 if IS_INTERPRETED else LOW)
    dit = fused(BlockDiT(net), net)
    before = [window(dit, 2, 0, seed=9)]
    static = StaticBlocks(make_block_list(before, dit.lay_out(before)), num_blocks)
    windows = some_windows(dit)
    layout = dit.lay_out(windows)
    static.put(windows, layout, num_blocks)
    found = dit.velocity(static.of(counts))
    assert found.isfinite().all()
    expected = dit.velocity(make_block_list(windows, layout))
    error = (found[: len(expected)] - expected).abs().max()
    assert error < (1e-5 if IS_INTERPRETED else 1e-2) * expected.abs().max()


def test_parameters_are_views_of_what_one_product_reads() -> None:
    """Also of a model that was moved since, as one that slept is."""
    net = make_net(LOW)
    before = {name: one.clone() for name, one in net.named_parameters()}
    for _ in range(2):
        with torch.inference_mode():
            layers: Any = fused(BlockDiT(net), net)._layers
        for layer, its in zip(net.transformer_blocks, layers._layers, strict=True):
            inputs = layer.attn.to_q, layer.attn.to_k, layer.attn.to_v
            for packed, name in ((its.weight, "weight"), (its.bias, "bias")):
                parts = [getattr(one, name) for one in inputs]
                assert torch.equal(packed, torch.cat(parts))
                assert {one.untyped_storage().data_ptr() for one in parts} == {packed.data_ptr()}
        for name, one in net.named_parameters():
            assert torch.equal(one, before[name])
        for layer in net.transformer_blocks:
            layer.attn.float().to(LOW)


@pytest.mark.skipif(IS_INTERPRETED, reason="half precision on a GPU")
@torch.inference_mode()
def test_in_half_precision_on_a_gpu_layers_are_fused_and_as_near_as_exact_ones() -> None:
    exact, low = BlockDiT(make_net(torch.float32)), BlockDiT(net := make_net(LOW))
    assert isinstance(exact._layers, ExactLayers)
    assert not isinstance(low._layers, ExactLayers)
    windows = some_windows(exact)
    expected, found = (torch.cat(one.velocities(windows)) for one in (exact, low))
    low._layers = ExactLayers(net, low._tables)
    other = torch.cat(low.velocities(windows))
    errors = [(one - expected).pow(2).mean().sqrt() for one in (found, other)]
    assert errors[0] < 1.5 * errors[1] < 3e-2 * expected.pow(2).mean().sqrt()


@pytest.mark.skipif(IS_INTERPRETED, reason="CUDA graphs")
@torch.inference_mode()
def test_a_graph_gives_what_the_fused_forward_gives() -> None:
    dit = BlockDiT(make_net(LOW))
    windows = some_windows(dit)
    expected = dit.velocities(windows)
    dit.capture(windows[:1])
    for found, other in zip(dit.velocities(windows), expected, strict=True):
        assert (found - other).abs().max() < 1e-2 * other.abs().max()
