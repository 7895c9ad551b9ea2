"""Products of routed experts against torch's; without a GPU, TRITON_INTERPRET=1 runs them."""

from itertools import product

import pytest
import torch
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS
from torch.nn import functional

pytestmark = RUNS_KERNELS
NUM_EXPERTS, NUM_PICKS, SIZE, INNER = 6, 2, 256, 128
FEW = [(1, 40, True), (16, 1, False), (17, 40, False), (61, 1, True)]
CASES = FEW if IS_INTERPRETED else list(product([1, 16, 17, 61], [1, 40], [False, True]))


def drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE)


@pytest.mark.parametrize(("num_rows", "num_processors", "is_scaled"), CASES)
def test_products_are_those_of_each_row_and_its_experts(
    num_rows: int, num_processors: int, is_scaled: bool
) -> None:
    """With scales the weights are as they are, so that float32 can be multiplied here."""
    from omnistage.stages.vllm.models.experts_kernel import assign, multiply

    rows = drawn(num_rows, SIZE)
    first = drawn(NUM_EXPERTS, 2 * INNER, SIZE) / SIZE**0.5
    second = drawn(NUM_EXPERTS, SIZE, INNER) / INNER**0.5
    picks = torch.stack([torch.randperm(NUM_EXPERTS)[:NUM_PICKS] for _ in range(num_rows)])
    weights = torch.rand(num_rows, NUM_PICKS).to(DEVICE)
    count = num_rows * NUM_PICKS
    scales = [
        (torch.rand(num_rows, 1).to(DEVICE), torch.rand(NUM_EXPERTS, 2 * INNER, 1).to(DEVICE)),
        (torch.rand(count, 1).to(DEVICE), torch.rand(NUM_EXPERTS, SIZE, 1).to(DEVICE)),
    ]
    inner = torch.full((count, INNER), float("nan"), device=DEVICE)
    output = torch.full((count, SIZE), float("nan"), device=DEVICE)
    assigned = assign(picks.int().to(DEVICE), NUM_EXPERTS)
    given = scales if is_scaled else [None, None]
    multiply(rows, first, inner, assigned, num_processors, scales=given[0])
    multiply(inner, second, output, assigned, num_processors, pick_weights=weights, scales=given[1])

    for place, expert in enumerate(picks.flatten().tolist()):
        row = place // NUM_PICKS
        both = first[expert] @ rows[row]
        if is_scaled:
            both = both * scales[0][0][row] * scales[0][1][expert, :, 0]
        gate, up = both.chunk(2)
        expected = functional.silu(gate) * up
        torch.testing.assert_close(inner[place], expected, atol=2e-5, rtol=1e-4)
        expected = second[expert] @ inner[place]
        if is_scaled:
            expected = expected * scales[1][0][place] * scales[1][1][expert, :, 0]
        expected = expected * weights.flatten()[place]
        torch.testing.assert_close(output[place], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "fit"),
    [(768, 2048, True), (1024, 384, True), (96, 2048, False), (768, 1000, False)],
)
def test_only_products_of_whole_tiles_are_taken(
    num_outputs: int, num_inputs: int, fit: bool
) -> None:
    from omnistage.stages.vllm.models.experts_kernel import fits

    assert fits(num_outputs, num_inputs) == fit


@pytest.mark.parametrize("num_rows", [17, 40, 128])
def test_each_pick_is_in_one_tile_of_its_expert(num_rows: int) -> None:
    from omnistage.stages.vllm.models.experts_kernel import ROWS, assign

    chosen = torch.stack([torch.randperm(NUM_EXPERTS)[:NUM_PICKS] for _ in range(num_rows)]).int()
    chosen[:, 0] = chosen[:, 0] // 2  # experts that nobody chose, and one of many
    chosen[: num_rows // 2] = torch.tensor([4, 5])
    assigned = assign(chosen.to(DEVICE), NUM_EXPERTS)
    num_padded = int(assigned.num_padded)
    assert num_padded % ROWS == 0
    assert num_padded <= len(assigned.picks)
    tiles = assigned.picks[:num_padded].view(-1, ROWS).tolist()
    experts = assigned.experts[: len(tiles)].tolist()
    flat = chosen.flatten().tolist()
    found = [(pick, expert) for tile, expert in zip(tiles, experts, strict=True) for pick in tile]
    real = sorted(one for one in found if one[0] < len(flat))
    assert real == list(enumerate(flat))
    assert {pick for pick, _ in found if pick >= len(flat)} <= {len(flat)}
    counts = [-(-flat.count(expert) // ROWS) for expert in range(NUM_EXPERTS)]
    assert experts == [expert for expert, count in enumerate(counts) for _ in range(count)]


def test_a_pick_of_no_expert_is_in_no_tile() -> None:
    from omnistage.stages.vllm.models.experts_kernel import ROWS, assign

    chosen = torch.tensor([[0, 3], [NUM_EXPERTS, -1]] * 20, dtype=torch.int32, device=DEVICE)
    assigned = assign(chosen, NUM_EXPERTS)
    found = assigned.picks[: int(assigned.num_padded)].tolist()
    picks = [4 * number for number in range(20)], [4 * number + 1 for number in range(20)]
    none = [chosen.numel()] * (2 * ROWS - 20)
    assert found == [*picks[0], *none, *picks[1], *none]
    assert assigned.experts[:4].tolist() == [0, 0, 3, 3]
