"""Lists of blocks in the sizes that graphs have, and the graphs themselves on a GPU."""

import numpy as np
import pytest
import torch
from support.token2wav import make_speakers, make_token2wav, random_codes

from omnistage.stages.qwen2_5_omni.dit import BlockDiT
from omnistage.stages.qwen2_5_omni.dit_blocks import BlockList, Window, make_block_list
from omnistage.stages.qwen2_5_omni.dit_graphs import SIZES, padded, put

VOICE = make_speakers()["Ethan"]


def window(dit: BlockDiT, num_blocks: int, num_past: int, seed: int) -> Window:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(num_blocks, 24, 80, generator=generator).to(dit.device)
    codes = random_codes(12 * num_blocks - 5, seed)[:, 0].astype(np.int64)
    voice = dit.voice(VOICE["cond"].to(dit.device), VOICE["ref_mel"].to(dit.device))
    return Window(state, codes, 3 * seed, num_past, seed % len(dit.times.values), voice)


def listed(dit: BlockDiT, *windows: Window) -> BlockList:
    return make_block_list(windows, dit.depth, dit.codes_per_block)


@torch.inference_mode()
def test_blocks_of_a_padded_list_are_computed_as_they_are() -> None:
    """Whatever the list held before, and though no past block of it is left out."""
    dit = BlockDiT(make_token2wav(8).code2wav_dit_model)
    static = padded(listed(dit, window(dit, 2, 0, seed=9)), 12)
    for windows in (
        (window(dit, 6, 2, seed=1), window(dit, 4, 1, seed=2)),
        (window(dit, 3, 0, seed=3),),
    ):
        blocks = listed(dit, *windows)
        put(blocks, static)
        assert torch.equal(dit.velocity(static)[: blocks.counts[0]], dit.velocity(blocks))
        assert dit.velocity(static).isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs")
@torch.inference_mode()
def test_a_graph_gives_what_its_forward_gives() -> None:
    dit = BlockDiT(make_token2wav(8).code2wav_dit_model.cuda())
    dit.capture([window(dit, 3, 0, seed=9)])
    for count in (1, 3, 7, 40):
        windows = [window(dit, 6, 2, seed=number) for number in range(count)]
        expected = dit.velocity(listed(dit, *windows)).split([one.num_new for one in windows])
        assert 6 * count <= max(SIZES)
        for velocity, other in zip(dit.velocities(windows), expected, strict=True):
            assert (velocity - other).abs().max() < 1e-4 * other.abs().max()
