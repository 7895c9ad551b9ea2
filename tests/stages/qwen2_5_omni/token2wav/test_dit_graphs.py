"""Lists of blocks in the sizes that graphs have, and the graphs themselves on a GPU."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.models.token2wav import make_speakers, make_token2wav, random_codes

from omnistage.stages.qwen2_5_omni.token2wav.dit import BlockDiT
from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import (
    MAX_BLOCKS,
    BlockList,
    Window,
    make_block_list,
)
from omnistage.stages.qwen2_5_omni.token2wav.dit_graphs import (
    DiTGraphs,
    StaticBlocks,
    counts_of_graphs,
    fitting,
)

VOICE = make_speakers()["Ethan"]
# Products of other sizes round otherwise, and what neighbours bring is multiplied by 8: on a CPU
# float32 is up to 3e-5 from float64, and a window with another one's past 0.15.
BOUND = 1e-3


def window(dit: BlockDiT, num_blocks: int, num_past: int, seed: int) -> Window:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(num_blocks, 24, 80, generator=generator).to(dit.device)
    codes = random_codes(12 * num_blocks - 5, seed)[:, 0].astype(np.int64)
    voice = dit.voice(VOICE["cond"].to(dit.device), VOICE["ref_mel"].to(dit.device))
    past, new = state.tensor_split([num_past])
    return Window(past, new, codes, 3 * seed, seed % len(dit.times.values), voice)


def listed(dit: BlockDiT, *windows: Window) -> BlockList:
    return make_block_list(windows, dit.lay_out(windows))


@torch.inference_mode()
def test_blocks_among_others_are_computed_as_they_are() -> None:
    """Whatever the list held before, and though blocks that nobody wants are not left out."""
    dit = BlockDiT(make_token2wav(8).code2wav_dit_model)
    static = StaticBlocks(listed(dit, window(dit, 2, 0, seed=9)), 12)
    for counts, windows in (
        ((12, 12, 12), (window(dit, 6, 2, seed=1), window(dit, 4, 1, seed=2))),
        ((10, 11, 12), (window(dit, 3, 0, seed=3),)),
        ((9, 9, 9), (window(dit, 5, 2, seed=4), window(dit, 2, 0, seed=5))),
        ((7, 8, 9), (window(dit, 6, 2, seed=6), window(dit, 2, 0, seed=7))),
        # Past blocks are computed further than needed, and those that they look at are not there.
        ((7, 8, 10), [window(dit, 2 + size, 2, seed=size) for size in (1, 2, 1)]),
    ):
        layout = dit.lay_out(windows)
        assert fitting(layout.counts, [counts]) == counts
        static.put(windows, layout, counts[-1])
        found = dit.velocity(static.of(counts))
        assert found.isfinite().all()
        expected = dit.velocity(listed(dit, *windows))
        assert torch.equal(found[: len(expected)], expected)


def test_graphs_take_every_list_of_as_many_blocks_as_a_forward_has() -> None:
    graphs = [*counts_of_graphs(2)]
    assert [max(one) for one in graphs] == sorted((max(one) for one in graphs), reverse=True)
    assert len({*graphs}) == len(graphs)
    graphs.sort(key=sum)
    for size in range(1, MAX_BLOCKS + 1):
        found = fitting((size,) * 3, graphs)
        assert found is not None
        assert size <= min(found)
        assert max(found) - size <= 2 + 0.4 * size
    assert fitting((MAX_BLOCKS + 1,) * 3, graphs) is None


def test_of_windows_of_nine_blocks_none_is_computed_in_vain() -> None:
    graphs = sorted(counts_of_graphs(2), key=sum)
    for count in (1, 2, 8, 56):
        assert fitting((7 * count, 8 * count, 9 * count), graphs) == (
            (7 * count, 8 * count, 9 * count)
        )
    assert fitting((5, 8, 9), graphs) == (7, 8, 9)
    assert fitting((8, 8, 9), graphs) == (9, 9, 9)


@torch.inference_mode()
def test_a_list_is_put_into_the_graph_that_computes_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that take it, though the largest are recorded first."""
    replayed: list[tuple[int, ...]] = []

    class Graph:
        def __init__(self, counts: tuple[int, ...]) -> None:
            self._counts = counts

        def pool(self) -> None:
            """It has none."""

        def replay(self) -> None:
            replayed.append(self._counts)

    def recorded(compute: Callable[[], torch.Tensor], _: object) -> tuple[Graph, torch.Tensor]:
        counts = computed.pop()
        return Graph(counts), compute()

    monkeypatch.setattr("omnistage.stages.qwen2_5_omni.token2wav.dit_graphs.record", recorded)
    dit = BlockDiT(make_token2wav(8).code2wav_dit_model)
    every = [*counts_of_graphs(dit.depth)]
    computed = every[::-1]
    graphs = DiTGraphs()
    graphs.record(
        lambda blocks: torch.zeros(blocks.counts[0], 24, 80), listed(dit, window(dit, 3, 0, seed=9))
    )
    for count in (1, 2, 5, 30):
        for num_past in (0, 1, 2):
            windows = [window(dit, 9, num_past, seed=number) for number in range(count)]
            layout = dit.lay_out(windows)
            velocity = graphs.velocity(windows, layout)
            assert velocity is not None
            assert len(velocity) == layout.counts[0]
            taking = [one for one in every if (np.array(layout.counts) <= np.array(one)).all()]
            assert sum(replayed[-1]) == min(map(sum, taking))
            assert replayed[-1] in taking


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs")
@torch.inference_mode()
def test_a_graph_gives_what_its_forward_gives() -> None:
    dit = BlockDiT(make_token2wav(8).code2wav_dit_model.cuda())
    dit.capture([window(dit, 3, 0, seed=9)])
    for count in (1, 3, 7, 40):
        windows = [window(dit, 6, 2, seed=number) for number in range(count)]
        expected = dit.velocity(listed(dit, *windows)).split([one.num_new for one in windows])
        assert fitting(dit.lay_out(windows).counts, dit._graphs._recorded)
        for velocity, other in zip(dit.velocities(windows), expected, strict=True):
            assert (velocity - other).abs().max() < BOUND * other.abs().max()


def test_a_model_that_a_test_moves_is_its_own() -> None:
    """Else tests that follow one on a GPU would find the model there."""
    make_token2wav(8).to("meta")
    assert make_token2wav(8).device.type == "cpu"
