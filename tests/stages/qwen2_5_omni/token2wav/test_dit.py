"""The DiT over lists of blocks: one evaluation of it against transformers' own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.models.token2wav import make_speakers, make_token2wav, random_codes

from omnistage.stages.qwen2_5_omni.token2wav import dit as forward
from omnistage.stages.qwen2_5_omni.token2wav import dit_layers
from omnistage.stages.qwen2_5_omni.token2wav.dit import BlockDiT
from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import Window

F64 = torch.float64
VOICE = make_speakers()["Ethan"]


def state_of(num_blocks: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_blocks, 24, 80, dtype=dtype, generator=generator)


def window(
    dit: BlockDiT, state: torch.Tensor, num_codes: int, time: int = 5, seed: int = 0, **place: int
) -> Window:
    codes = random_codes(num_codes, seed)[:, 0].astype(np.int64)
    voice = dit.voice(VOICE["cond"], VOICE["ref_mel"])
    past, new = state.tensor_split([place.get("num_past", 0)])
    return Window(past, new, codes, place.get("first", 0), time, voice)


@torch.inference_mode()
def reference(dit: Any, window: Window, time: torch.Tensor) -> torch.Tensor:
    """The velocity of a window without a past, of the frames that there are."""
    assert not window.num_past
    state = window.state.flatten(0, 1)[None, : 2 * len(window.codes)]
    output = dit(
        hidden_states=state,
        speaker_embedding=VOICE["cond"].to(state)[:, None].expand(1, state.shape[1], -1),
        condition_vector=VOICE["ref_mel"].to(state),
        quantized_code=torch.from_numpy(window.codes)[None],
        time_step=time,
    )
    guided, free = output
    velocity: torch.Tensor = guided + (guided - free) * 0.5
    return velocity


@torch.inference_mode()
def velocities(dit: BlockDiT, *windows: Window) -> list[torch.Tensor]:
    return dit.velocities(windows)


@pytest.mark.parametrize("num_codes", [1, 12, 43, 48])
def test_windows_at_different_times_share_a_forward_that_is_the_reference_s(num_codes: int) -> None:
    net = make_token2wav(8, F64).code2wav_dit_model
    dit = BlockDiT(net)
    num_blocks = -(-num_codes // 12)
    one = window(dit, state_of(num_blocks, 1, F64), num_codes, time=3)
    other = window(dit, state_of(3, 2, F64), 36, time=20, seed=4)
    found = velocities(dit, other, one)
    for mine, velocity in zip((other, one), found, strict=True):
        expected = reference(net, mine, dit.times.values[mine.time])
        actual = velocity.flatten(0, 1)[: len(expected)]
        assert (actual - expected).abs().max() < 1e-6 * expected.abs().max()


def test_of_the_past_two_blocks_are_all_that_one_evaluation_sees() -> None:
    """A window with two past blocks gives what the whole answer gives of its new blocks."""
    dit = BlockDiT(make_token2wav(8, F64).code2wav_dit_model)
    state = state_of(6, 1, F64)
    (whole,) = velocities(dit, window(dit, state, 72))
    cut = window(dit, state[1:], 72, first=1, num_past=2)
    cut = replace(cut, codes=cut.codes[12:])
    (found,) = velocities(dit, cut)
    assert torch.equal(found, whole[3:])
    changed = state.clone()
    changed[1] += 1
    (other,) = velocities(dit, window(dit, changed, 72))
    assert [not torch.equal(other[block], whole[block]) for block in range(6)] == (
        [True] * 4 + [False] * 2
    )


def test_bits_of_a_window_do_not_depend_on_the_others_in_the_list() -> None:
    dit = BlockDiT(make_token2wav(8).code2wav_dit_model)
    windows = [
        window(dit, state_of(size, size), 12 * size - size % 3, time=size, num_past=size % 3)
        for size in (1, 2, 3, 5, 8, 13)
    ]
    together = velocities(dit, *windows)
    for mine, velocity in zip(windows, together, strict=True):
        assert torch.equal(velocities(dit, mine)[0], velocity)


def test_a_gpu_s_matrix_products_are_of_the_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another device than a CPU computes with, on this one: the same to rounding."""
    dit = BlockDiT(make_token2wav(8, F64).code2wav_dit_model)
    mine = window(dit, state_of(3, 1, F64), 36)
    expected = velocities(dit, mine)[0]
    for module in (forward, dit_layers):
        monkeypatch.setattr(module, "blockwise", torch.nn.functional.linear)
    assert (velocities(dit, mine)[0] - expected).abs().max() < 1e-12


def test_matrices_in_bfloat16_leave_the_states_in_float32() -> None:
    net = make_token2wav(8).code2wav_dit_model
    exact = BlockDiT(net)
    mine = window(exact, state_of(3, 1), 36)
    expected = velocities(exact, mine)[0]
    low: Any = type(net)(net.config).requires_grad_(False)
    low.load_state_dict(net.state_dict())
    for layer in low.transformer_blocks:
        layer.attn.bfloat16()
        layer.ff.bfloat16()
    (found,) = velocities(BlockDiT(low), mine)
    assert found.dtype == torch.float32
    error = (found - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert 1e-4 < error < 3e-2
