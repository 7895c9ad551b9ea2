# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""The products of routed experts as one kernel of few programs, for steps of few rows.

A kernel with a program a tile holds the whole GPU until the last of its tiles has begun, and the
kernels of other processes on the GPU wait for that. Here each program computes one tile after
another, and there are only so many that the GPU has room for others from the first moment. With few
rows all that counts is that weights come at the memory's rate, for which these programs are enough.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

ROWS = 16  # of one expert that a tile has
FEW_PICKS = 32  # each of so few is a tile of its own: hardly two are of one expert


@triton.jit(do_not_specialize=["NUM_PICKS"])
def _assign(
    chosen, picks, experts, num_padded, NUM_PICKS, NUM_EXPERTS: tl.constexpr,
    ALL_PICKS: tl.constexpr, ALL_EXPERTS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program an expert: where its picks begin is known from how many the others have."""
    expert = tl.program_id(0)
    pick = tl.arange(0, ALL_PICKS)
    of = tl.load(chosen + pick, mask=pick < NUM_PICKS, other=-1).to(tl.int32)
    # What is no expert is nobody's, as vLLM's moe_align_block_size has it: the last bin.
    of = tl.where((of >= 0) & (of < NUM_EXPERTS), of, ALL_EXPERTS - 1)
    number = tl.arange(0, ALL_EXPERTS)
    counts = tl.histogram(of, ALL_EXPERTS)
    tiles = tl.where(number < NUM_EXPERTS, (counts + ROWS - 1) // ROWS, 0)
    start = tl.sum(tl.where(number < expert, tiles, 0), 0)
    own = tl.sum(tl.where(number == expert, tiles, 0), 0)
    is_own = of == expert
    place = start * ROWS + tl.cumsum(is_own.to(tl.int32), 0) - 1
    tl.store(picks + place, pick, mask=is_own)
    # What is left of the last tile are no picks.
    count = tl.sum(is_own.to(tl.int32), 0)
    left = tl.arange(0, ROWS)
    tl.store(picks + start * ROWS + count + left, NUM_PICKS, mask=count + left < own * ROWS)
    tile = tl.arange(0, TILES)
    tl.store(experts + start + tile, expert, mask=tile < own)
    if expert == NUM_EXPERTS - 1:
        tl.store(num_padded, (start + own) * ROWS)


@triton.jit(do_not_specialize=["NUM_PICKS"])
def _multiply(
    inputs, weight, output, picks, experts, num_padded, pick_weights, input_scales, weight_scales,
    NUM_PICKS, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, PICKS_OF_ROW: tl.constexpr,
    IS_GATED: tl.constexpr, IS_SCALED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    INPUT_BLOCK: tl.constexpr, NUM_PROGRAMS: tl.constexpr, ARE_ALONE: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = 2 if IS_GATED else 1
    TILES: tl.constexpr = NUM_OUTPUTS // BLOCK
    kind: tl.constexpr = output.dtype.element_ty
    num_tiles = NUM_PICKS * TILES if ARE_ALONE else tl.load(num_padded) // ROWS * TILES
    k = tl.arange(0, INPUT_BLOCK)
    for tile in range(tl.program_id(0), num_tiles, NUM_PROGRAMS):
        block = tile // TILES
        column = tile % TILES * BLOCK + tl.arange(0, BLOCK)
        number = tl.arange(0, ROWS)
        if ARE_ALONE:
            pick = tl.where(number == 0, block, NUM_PICKS)
        else:
            pick = tl.load(picks + block * ROWS + number)
        is_pick = pick < NUM_PICKS
        expert = tl.load(experts + block).to(tl.int64)
        row = pick // PICKS_OF_ROW
        left_place = inputs + row[None, :] * NUM_INPUTS + k[:, None]
        place = weight + expert * (PARTS * NUM_OUTPUTS * NUM_INPUTS)
        place += column[:, None] * NUM_INPUTS + k[None, :]
        # Columns are the longer side, which matrix units want first.
        total = tl.zeros((BLOCK, ROWS), dtype=tl.float32)
        gate = tl.zeros((BLOCK, ROWS), dtype=tl.float32)
        for first in range(0, NUM_INPUTS, INPUT_BLOCK):
            left = tl.load(left_place + first, mask=is_pick[None, :], other=0.0)
            if IS_GATED:
                gate = tl.dot(tl.load(place + first), left, gate, input_precision="ieee")
                up = tl.load(place + NUM_OUTPUTS * NUM_INPUTS + first)
                total = tl.dot(up, left, total, input_precision="ieee")
            else:
                total = tl.dot(tl.load(place + first), left, total, input_precision="ieee")
        if IS_SCALED:
            by_row = tl.load(input_scales + row, mask=is_pick, other=0.0)[None, :]
            scales = weight_scales + expert * (PARTS * NUM_OUTPUTS) + column
            if IS_GATED:
                gate = gate * by_row * tl.load(scales)[:, None]
                scales += NUM_OUTPUTS
            total = total * by_row * tl.load(scales)[:, None]
        if IS_GATED:  # rounded where vLLM's kernels round
            wide = gate.to(kind).to(tl.float32)
            activated = (wide * tl.sigmoid(wide)).to(kind).to(tl.float32)
            total = activated * total.to(kind).to(tl.float32)
        else:
            total *= tl.load(pick_weights + pick, mask=is_pick, other=0.0)[None, :]
        place = output + pick[None, :].to(tl.int64) * NUM_OUTPUTS + column[:, None]
        tl.store(place, total.to(kind), mask=is_pick[None, :])


def fits(num_outputs: int, num_inputs: int) -> bool:
    """Returns whether a product has whole tiles only, whatever its dtype is."""
    return num_outputs % 128 == 0 and num_inputs % 128 == 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """The picks of a step's rows in tiles, each of one expert, int32.

    `picks`: numbers of picks, row after row, ROWS a tile; those of `num_picks` and above are none.
    `experts`: of each tile. `num_padded` [1]: how many of `picks` there are. With `are_alone` each
    pick is a tile of its own, `experts` has its expert, and the others are not used.
    """

    picks: torch.Tensor
    experts: torch.Tensor
    num_padded: torch.Tensor
    num_picks: int
    are_alone: bool


def assign(chosen: torch.Tensor, num_experts: int) -> Assigned:
    """Tiles of the experts that each row has chosen, int32 [rows, picks], different ones a row."""
    num_rows, num_picks = chosen.shape[0], chosen.numel()
    if num_picks <= FEW_PICKS:
        flat = chosen.flatten()
        return Assigned(flat, flat, flat, num_picks, are_alone=True)
    num_tiles = num_picks // ROWS + min(num_experts, num_picks)
    picks, experts = chosen.new_empty(num_tiles * ROWS), chosen.new_empty(num_tiles)
    num_padded = chosen.new_empty(1)
    _assign[(num_experts,)](
        chosen, picks, experts, num_padded, num_picks, NUM_EXPERTS=num_experts,
        ALL_PICKS=triton.next_power_of_2(num_picks),
        ALL_EXPERTS=triton.next_power_of_2(num_experts + 1), ROWS=ROWS,
        TILES=triton.next_power_of_2(triton.cdiv(num_rows, ROWS)), num_warps=4,
    )  # fmt: skip
    return Assigned(picks, experts, num_padded, num_picks, are_alone=False)


def multiply(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    assigned: Assigned,
    num_processors: int,
    *,
    pick_weights: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Products of each pick of a row and its expert, for a GPU of so many multiprocessors.

    `output` [rows * picks, n]: without `pick_weights` the gated products silu(x w1) * (x w2) of
    `inputs` [rows, k] and `weight` [experts, 2 n, k]; with them, float32 [rows, picks], those of
    `inputs` [rows * picks, k] and `weight` [experts, n, k] times the pick's weight. `scales`,
    float32: of each row of the inputs, and of each output of each expert, of tensors in float8.
    """
    is_gated, is_scaled = pick_weights is None, scales is not None
    num_outputs, num_inputs = output.shape[1], inputs.shape[1]
    input_scales, weight_scales = scales if scales is not None else (inputs, weight)
    # Two programs a multiprocessor keep enough bytes under way, and leave a third of its memory.
    block, input_block, num_stages = (64, 256, 2) if is_scaled else (32, 128, 3)
    num_programs = 2 * num_processors
    _multiply[(num_programs,)](
        inputs, weight, output, assigned.picks, assigned.experts, assigned.num_padded,
        inputs if pick_weights is None else pick_weights, input_scales, weight_scales,
        assigned.num_picks, NUM_OUTPUTS=num_outputs, NUM_INPUTS=num_inputs,
        PICKS_OF_ROW=assigned.num_picks // len(inputs), IS_GATED=is_gated, IS_SCALED=is_scaled,
        ROWS=ROWS, BLOCK=block if is_gated else 2 * block,
        INPUT_BLOCK=input_block if num_inputs % input_block == 0 else input_block // 2,
        NUM_PROGRAMS=num_programs, ARE_ALONE=assigned.are_alone, num_warps=4,
        num_stages=num_stages,
    )  # fmt: skip
