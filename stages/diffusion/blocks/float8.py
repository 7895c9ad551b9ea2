"""Linear layers whose products take numbers of eight bits: half the weights' bytes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

FLOAT8 = torch.float8_e4m3fn
DEVICE = "cuda"  # where a kernel rounds
# cuBLAS has no product that adds a bias to few rows of more columns, such as a short text's; up to
# these it had one on an H200 for any number of rows.
MANY_COLUMNS = 5120


class Float8Linear(nn.Module):
    """A linear layer with weights and inputs in float8 (e4m3).

    Each row of the weights and each row of the inputs is scaled by its own largest value, so a row
    depends on no other. Sums are those of the matrix units (`use_fast_accum`), whose rounding is
    far below that of float8, and what comes out is rounded to bfloat16. What it holds are buffers:
    Diffusers takes a model's dtype from its first parameter. `takes_gelu`: the layer before it
    leaves its GELU (with tanh) to this one, which computes it where it rounds.
    """

    takes_gelu = False

    weight: Tensor  # [out, in] float8
    scale: Tensor  # [1, out] float32: each row's largest number over that of float8
    bias: Tensor | None  # [out] bfloat16

    def __init__(self, linear: nn.Linear, device: torch.device) -> None:
        """The weights of a linear layer, on a device."""
        super().__init__()
        weight, scale = in_float8(linear.weight.detach().to(device))
        bias = None if linear.bias is None else linear.bias.detach().to(device, torch.bfloat16)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.t().contiguous())
        self.register_buffer("bias", bias)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] of any dtype to [..., out] of the same one."""
        (product,) = products(inputs, [self])
        return product

    def product(self, rows: Tensor, scale: Tensor) -> Tensor:
        """[rows, in] float8 with scales [rows, 1] to [rows, out] bfloat16."""
        adds_bias = self.in_features <= MANY_COLUMNS  # whatever the rows: so it is one code
        # The one product of float8 that torch 2.11 compiles as a part of its block: it knows
        # `aten._scaled_mm`, and not what `torch.nn.functional.scaled_mm` calls.
        made = torch._scaled_mm(
            rows,
            self.weight.t(),
            scale,
            self.scale,
            bias=self.bias if adds_bias else None,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,  # or a Hopper takes every few products out of its matrix units
        )
        return made if adds_bias or self.bias is None else made + self.bias


def products(inputs: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """Returns what each layer makes of [..., in]; where all are float8 the inputs are rounded
    once.
    """
    found = [layer for layer in layers if isinstance(layer, Float8Linear)]
    if len(found) < len(layers):
        return [layer(inputs) for layer in layers]
    rows, scale = in_float8(inputs.reshape(-1, inputs.shape[-1]), found[0].takes_gelu)
    return [
        layer.product(rows, scale).view(*inputs.shape[:-1], layer.out_features).to(inputs.dtype)
        for layer in found
    ]


def in_float8(rows: Tensor, has_gelu: bool = False) -> tuple[Tensor, Tensor]:
    """[rows, columns] in float8, contiguous, and each row's scale, [rows, 1] float32.

    `has_gelu`: of their GELU with tanh.
    """
    rows = rows.contiguous()
    # Numbers of the module would be arguments of blocks that are compiled for any sizes.
    limit, smallest_scale = torch.finfo(FLOAT8).max, 1e-12  # the scale of a row of zeros
    if rows.device.type == DEVICE:
        # Torch's compiler would read a wide row twice, and write a row of several layers for each.
        from omnistage.stages.diffusion.blocks.float8_kernels import round_rows

        return round_rows(rows, FLOAT8, limit, smallest_scale, has_gelu)
    if has_gelu:
        rows = gelu(rows, approximate="tanh")
    scale = (rows.abs().amax(-1, keepdim=True).float() / limit).clamp(min=smallest_scale)
    return (rows * scale.reciprocal()).clamp(-limit, limit).to(FLOAT8), scale
