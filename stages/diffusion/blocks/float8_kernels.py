# mypy: disable-error-code="no-untyped-def,import-untyped,untyped-decorator"
"""Rounding to float8 on a GPU: each row is read once, and written once."""

import torch
import triton
import triton.language as tl

WIDE = 4096  # columns from which on a row has more warps


@triton.jit
def _round(
    rows, output, scales, NUM_COLUMNS: tl.constexpr, COLUMNS: tl.constexpr, LIMIT: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr, HAS_GELU: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < NUM_COLUMNS
    value = tl.load(rows + row * NUM_COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_GELU:  # (1 + tanh(x)) / 2 is the sigmoid of 2 x; its rounding is torch's
        inner = 1.5957691216057308 * (value + 0.044715 * value * value * value)
        value = (value * tl.sigmoid(inner)).to(rows.dtype.element_ty).to(tl.float32)
    # Bit by bit as on a CPU: what is rounded often lies right between two numbers of float8.
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(value), 0), LIMIT), SMALLEST_SCALE)
    value = tl.minimum(tl.maximum(value * tl.div_rn(1.0, scale), -LIMIT), LIMIT)
    tl.store(output + row * NUM_COLUMNS + column, value.to(output.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def round_rows(
    rows: torch.Tensor,
    dtype: torch.dtype,
    limit: float,
    smallest_scale: float,
    has_gelu: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, columns], contiguous, in a dtype of eight bits with this limit; their scales.

    A row's largest number becomes the limit. `scales`, float32 [rows, 1]: at least the smallest.
    `has_gelu`: of the rows' GELU with tanh.
    """
    num_rows, num_columns = rows.shape
    output = torch.empty_like(rows, dtype=dtype)
    scales = rows.new_empty(num_rows, 1, dtype=torch.float32)
    if num_rows:
        _round[(num_rows,)](
            rows, output, scales, NUM_COLUMNS=num_columns,
            COLUMNS=triton.next_power_of_2(num_columns), LIMIT=limit,
            SMALLEST_SCALE=smallest_scale, HAS_GELU=has_gelu,
            num_warps=8 if num_columns > WIDE else 4,
        )  # fmt: skip
    return output, scales
