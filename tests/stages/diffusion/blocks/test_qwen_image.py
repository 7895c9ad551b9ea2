"""Qwen-Image's blocks with kernels of our own, where the kernels do not apply."""

from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.models.activations import GELU

from omnistage.stages.diffusion.blocks.fused import fuse
from omnistage.stages.diffusion.loading.attention import set_attention
from omnistage.stages.diffusion.loading.components import Parts

CUDA = torch.device("cuda")
SIDE = 4


def make_denoiser() -> Any:
    torch.manual_seed(0)
    made: Any = QwenImageTransformer2DModel(
        num_layers=2, num_attention_heads=3, joint_attention_dim=32
    )
    return made.eval().requires_grad_(False)


def forward(denoiser: Any, rows: int = 1, mask: torch.Tensor | None = None) -> torch.Tensor:
    torch.manual_seed(1)
    with torch.inference_mode():
        sample: torch.Tensor = denoiser(
            hidden_states=torch.randn(rows, SIDE * SIDE, 64),
            timestep=torch.rand(rows),
            encoder_hidden_states=torch.randn(rows, 7, 32),
            encoder_hidden_states_mask=mask,
            img_shapes=[[(1, SIDE, SIDE)]] * rows,
        ).sample
    return sample


def test_on_a_cpu_and_in_float32_all_is_diffusers_own() -> None:
    denoiser = make_denoiser()
    mask = torch.arange(7)[None] < torch.tensor([[6], [7]])
    before = [forward(denoiser), forward(denoiser, 2, mask)]
    fuse(denoiser, CUDA)
    for found, expected in zip(
        [forward(denoiser), forward(denoiser, 2, mask)], before, strict=True
    ):
        assert torch.equal(found, expected)


def test_weights_keep_their_names_and_places() -> None:
    denoiser = make_denoiser()
    before = {name: one.data_ptr() for name, one in denoiser.state_dict().items()}
    fuse(denoiser, CUDA)
    assert {name: one.data_ptr() for name, one in denoiser.state_dict().items()} == before


def test_it_is_for_gpus_and_done_once() -> None:
    denoiser = make_denoiser()

    def kinds() -> list[type]:
        block = denoiser.transformer_blocks[1]
        parts = (block.attn.processor, block.img_mlp.net[0], block.txt_mod)
        return [type(one) for one in parts]

    plain = kinds()
    assert plain[1:] == [GELU, torch.nn.Sequential]
    fuse(denoiser, torch.device("cpu"))
    assert kinds() == plain
    fuse(denoiser, CUDA)
    once = [*denoiser.modules()]
    processor = denoiser.transformer_blocks[1].attn.processor
    assert not set(kinds()) & set(plain)
    fuse(denoiser, CUDA)
    assert all(one is other for one, other in zip(denoiser.modules(), once, strict=True))
    assert denoiser.transformer_blocks[1].attn.processor is processor


@pytest.mark.parametrize("is_chosen_first", [False, True])
def test_the_back_end_of_the_attention_is_the_one_that_was_chosen(is_chosen_first: bool) -> None:
    denoiser = make_denoiser()
    parts = Parts(dit={"transformer": denoiser})
    if is_chosen_first:
        set_attention(parts, "native_math", torch.device("cpu"))
    fuse(denoiser, CUDA)
    if not is_chosen_first:
        set_attention(parts, "native_math", torch.device("cpu"))
    for block in denoiser.transformer_blocks:
        assert block.attn.processor._attention_backend == "_native_math"


def test_a_denoiser_without_kernels_stays_as_it_is() -> None:
    denoiser = torch.nn.Sequential(torch.nn.Linear(2, 2))
    fuse(denoiser, CUDA)
    assert [type(one) for one in denoiser.modules()] == [torch.nn.Sequential, torch.nn.Linear]
