"""Denoisers whose products take numbers of eight bits: half the weights' bytes.

What comes out is near what the weights mean, not equal: `make image-speed ARGS="FOLDER
--load-format auto --quantization fp8"` prints how near, and how fast.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import ScalingType, scaled_mm

from omnistage.stages.diffusion.loading.components import Parts

QUANTIZATIONS = ("fp8",)
FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
SMALLEST_SCALE = 1e-12  # of a row of zeros
ALIGNMENT = 16  # numbers: what the kernels want of a row's and of a column's length
CAPABILITY = (8, 9)  # of the first GPUs that multiply such numbers


class Float8Linear(nn.Module):
    """A linear layer with weights and inputs in float8 (e4m3).

    Each row of the weights and each row of the inputs is scaled by its own largest value, so a row
    depends on no other. Sums are those of the matrix units (`use_fast_accum`), whose rounding is
    far below that of float8, and what comes out is rounded to bfloat16. What it holds are buffers:
    Diffusers takes a model's dtype from its first parameter.
    """

    weight: Tensor  # [out, in] float8
    scale: Tensor  # [1, out] float32: each row's largest number divided by `LARGEST`
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
        rows, scale = in_float8(inputs.reshape(-1, self.in_features).contiguous())
        product: Tensor = float8_product(rows, scale, self.weight, self.scale, self.bias)
        return product.view(*inputs.shape[:-1], self.out_features).to(inputs.dtype)


# An operator of our own, since torch 2.11 compiles no call of `scaled_mm`: with it each layer would
# end a compiled part of its block.
@torch.library.custom_op("omnistage::float8_product", mutates_args=())
def float8_product(
    rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None
) -> Tensor:
    """[rows, in] times [out, in], both float8 with scales [rows, 1] and [1, out], in bfloat16."""
    return scaled_mm(
        rows,
        weight.t(),
        row_scale,
        ScalingType.RowWise,
        scale,
        ScalingType.RowWise,
        bias=bias,
        output_dtype=torch.bfloat16,
        use_fast_accum=True,  # or a Hopper takes every few products out of its matrix units
    )


@float8_product.register_fake
def _(
    rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None
) -> Tensor:
    # The shapes' numbers may be symbols; len() would make constants of them.
    return rows.new_empty(rows.shape[0], weight.shape[0], dtype=torch.bfloat16)


def in_float8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] in float8, and each row's scale, [rows, 1] float32."""
    largest = rows.abs().amax(-1, keepdim=True).float()
    scale = (largest / LARGEST).clamp(min=SMALLEST_SCALE)
    return (rows / scale).clamp(-LARGEST, LARGEST).to(FLOAT8), scale


def quantize(parts: Parts, device: torch.device) -> None:
    """Put float8 into the denoisers' repeated blocks, on their device; the rest stays as it is.

    Layers stay whose sizes are no multiples of `ALIGNMENT`. Raises ValueError for a GPU without
    such products, and for a denoiser without repeated blocks or without a layer that fits.
    """
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        have, want = (".".join(map(str, one)) for one in (found, CAPABILITY))
        raise ValueError(f"quantization: fp8 needs a GPU of compute capability {want}, not {have}")
    for name, module in parts.dit.items():
        repeated = getattr(module, "_repeated_blocks", None) or ()
        blocks = [one for one in module.modules() if type(one).__name__ in repeated]
        if not blocks:
            raise ValueError(
                f"quantization: {name} ({type(module).__name__}) has no repeated blocks"
            )
        if not sum(_quantize(block, device) for block in blocks):
            raise ValueError(
                f"quantization: no linear layer in the blocks of {name} ({type(module).__name__}) "
                f"has sizes that are multiples of {ALIGNMENT}"
            )


def _quantize(block: nn.Module, device: torch.device) -> int:
    """Put float8 into one block; how many layers that changed."""
    found = [
        (parent, name, child)
        for parent in block.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _fits(child)
    ]
    for parent, name, child in found:
        setattr(parent, name, Float8Linear(child, device))
    return len(found)


def _fits(linear: nn.Linear) -> bool:
    return linear.in_features % ALIGNMENT == 0 and linear.out_features % ALIGNMENT == 0
