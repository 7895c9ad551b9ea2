"""The kernel that rounds rows to float8 beside torch's operators."""

import pytest
import torch
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS, relative_error
from torch.nn.functional import gelu

from omnistage.stages.diffusion.blocks.float8 import FLOAT8, in_float8

pytestmark = RUNS_KERNELS
LIMIT = torch.finfo(FLOAT8).max


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("num_rows", "num_columns"), [(1, 16), (5, 96), (3, 4112), (0, 32)])
def test_rows_are_rounded_as_by_torchs_operators(
    num_rows: int, num_columns: int, dtype: torch.dtype
) -> None:
    from omnistage.stages.diffusion.blocks.float8_kernels import round_rows

    torch.manual_seed(0)
    rows = torch.randn(num_rows, num_columns) * torch.rand(num_rows, 1) * 20
    rows[1:2] = 0
    rows = rows.to(dtype)
    expected, expected_scale = in_float8(rows)  # on a CPU
    found, scale = round_rows(rows.to(DEVICE), FLOAT8, LIMIT, 1e-12)
    assert (found.shape, found.dtype) == (rows.shape, FLOAT8)
    assert (scale.shape, scale.dtype) == ((num_rows, 1), torch.float32)
    given, exact = found.cpu().float(), expected.float()
    if not IS_INTERPRETED:
        assert torch.equal(scale.cpu(), expected_scale)
        assert torch.equal(given, exact)
        return
    # The interpreter cuts the smallest numbers off, and halves what it rounds up to a power of two.
    torch.testing.assert_close(scale.cpu(), expected_scale, rtol=1e-6, atol=0)
    assert (given != exact).sum() <= 0.05 * given.numel()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gelu_is_computed_where_rows_are_rounded(dtype: torch.dtype) -> None:
    from omnistage.stages.diffusion.blocks.float8_kernels import round_rows

    torch.manual_seed(0)
    rows = (3 * torch.randn(7, 200)).to(dtype)
    expected, expected_scale = in_float8(rows, True)  # on a CPU
    whole, _ = in_float8(gelu(rows, approximate="tanh"))
    assert torch.equal(expected.float(), whole.float())
    found, scale = round_rows(rows.to(DEVICE), FLOAT8, LIMIT, 1e-12, has_gelu=True)
    torch.testing.assert_close(scale.cpu(), expected_scale, rtol=1e-2, atol=0)
    given, exact = found.float().cpu() * scale.cpu(), expected.float() * expected_scale
    limit = 0.08 if IS_INTERPRETED else 0.04
    assert relative_error(given, gelu(rows.float(), approximate="tanh")) < limit
    # A last bit of a GELU that is another may be rounded to the other side.
    share = 0.1 if IS_INTERPRETED else 0.02
    assert ((given - exact).abs() > 0.02 * exact.abs()).sum() <= share * exact.numel()
