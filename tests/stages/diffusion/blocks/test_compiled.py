"""Compiled blocks: one code for all of them, with a step cache's hooks around it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from support.compiling import counted_codes

from omnistage.stages.diffusion.blocks.compiled import compile_forward, is_compiled, undo
from omnistage.stages.diffusion.control.step_cache import StepCache

NUM_BLOCKS = 10  # more than the codes that torch keeps of one function
STEPS = 6
LITE = {"cache_interval": 2, "use_lite_mode": True}


@pytest.fixture
def counter() -> Iterator[Any]:
    with counted_codes() as made:
        yield made


def make_denoiser() -> Any:
    torch.manual_seed(0)
    sizes = {"num_layers": NUM_BLOCKS, "num_attention_heads": 2, "joint_attention_dim": 16}
    return QwenImageTransformer2DModel(**sizes).eval()


@torch.inference_mode()
def steps(denoiser: Any) -> torch.Tensor:
    """The outputs of some steps, [steps, 1, tokens, channels]."""
    torch.manual_seed(1)
    given = torch.randn(1, 16, 64)
    texts = torch.randn(1, 5, 16)
    made = []
    for step in range(STEPS):
        with denoiser.cache_context("cond"):
            output = denoiser(
                hidden_states=given + step / STEPS,
                timestep=torch.tensor([1 - step / STEPS]),
                encoder_hidden_states=texts,
                img_shapes=[[(1, 4, 4)]],
                return_dict=False,
            )
        made.append(output[0])
    return torch.stack(made)


def compile_all(denoiser: Any) -> None:
    for block in denoiser.transformer_blocks:
        compile_forward(block)


def test_all_blocks_have_one_code(counter: Any) -> None:
    expected = steps(make_denoiser())
    denoiser = make_denoiser()
    compile_all(denoiser)
    compile_all(denoiser)
    torch.testing.assert_close(steps(denoiser), expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("name", "options"), [("taylor_seer", LITE), ("first_block", {"threshold": 1.0})]
)
def test_a_step_cache_skips_compiled_blocks_as_others_and_all_have_one_code(
    name: str, options: dict[str, Any], counter: Any
) -> None:
    plain, compiled = make_denoiser(), make_denoiser()
    compile_all(compiled)
    whole = steps(plain)
    made = []
    for denoiser in (plain, compiled):
        cache = StepCache(denoiser, name, options)
        cache.put(True)
        made.append(steps(denoiser))
        cache.put(False)
        torch.testing.assert_close(steps(denoiser), whole)
    torch.testing.assert_close(*made)
    assert (made[0] - whole).abs().max() > 1e-3
    assert counter.frame_count == 1
    assert all(map(is_compiled, compiled.transformer_blocks))


def test_a_block_can_be_as_before(counter: Any) -> None:
    denoiser = make_denoiser()
    compile_all(denoiser)
    for block in denoiser.transformer_blocks:
        undo(block)
        assert not is_compiled(block)
    steps(denoiser)
    assert counter.frame_count == 0
