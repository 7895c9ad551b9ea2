"""Qwen-Image's blocks with kernels of our own between their products, and behind them.

Where a kernel does not apply, such as on a CPU or in float32, Diffusers' own code runs.
"""

from typing import Any

import torch
from diffusers.models.activations import GELU
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers.transformer_qwenimage import (
    QwenDoubleStreamAttnProcessor2_0,
    QwenImageTransformerBlock,
)
from torch import Tensor, nn
from torch.nn.functional import gelu

from omnistage.stages.diffusion.blocks.flash_3 import flash_3
from omnistage.stages.diffusion.blocks.float8 import Float8Linear, products
from omnistage.stages.diffusion.blocks.qwen_image_kernels import AttentionStream, join, multiply_row

HALVES = (torch.bfloat16, torch.float16)
DEVICE = "cuda"  # where there are kernels
Layers = tuple[nn.Module, ...]
Rotations = tuple[Tensor, Tensor]  # of pictures and of texts, complex64 [tokens, size / 2]


def fuse(denoiser: nn.Module) -> None:
    """Put the kernels into each block, once."""
    for block in denoiser.modules():
        if isinstance(block, QwenImageTransformerBlock):
            _fuse(block)


def attend_by_flash_3(denoiser: nn.Module) -> None:
    """Sets FlashAttention 3 in blocks with kernels of ours; those whose heads do not fit stay as
    they are.
    """
    for module in denoiser.modules():
        processor = getattr(module, "processor", None)
        if isinstance(processor, JoinedAttention):
            processor.has_flash_3 = True


def _fuse(block: Any) -> None:
    processor = block.attn.processor
    if type(processor) is QwenDoubleStreamAttnProcessor2_0 and _fits(block.attn):
        block.attn.set_processor(JoinedAttention(processor))
    for mlp in (block.img_mlp, block.txt_mlp):
        if type(mlp.net[0]) is GELU and mlp.net[0].approximate == "tanh":
            mlp.net[0] = GeluProduct(mlp.net[0].proj)
        first, last = mlp.net[0], mlp.net[-1]
        if type(first) is GeluProduct and type(first.proj) is type(last) is Float8Linear:
            first.leaves_gelu = last.takes_gelu = True
    if type(block.img_mod) is type(block.txt_mod) is nn.Sequential:
        block.img_mod, block.txt_mod = Modulation(*block.img_mod), Modulation(*block.txt_mod)


def _fits(attn: Any) -> bool:
    """Returns whether queries and keys have norms, all with the same epsilon, and heads a usual
    size.
    """
    norms = (attn.norm_q, attn.norm_k, attn.norm_added_q, attn.norm_added_k)
    if not all(type(one) is RMSNorm and one.weight is not None for one in norms):
        return False
    size = attn.inner_dim // attn.heads
    are_same = all(one.bias is None and one.eps == attn.norm_q.eps for one in norms)
    return are_same and size >= 16 and size & (size - 1) == 0


class JoinedAttention(QwenDoubleStreamAttnProcessor2_0):
    """Diffusers' attention of text and picture, with one kernel between projections and attention.

    It calls the modules of the projections, whatever adapters or quantization made of them, and
    rounds the inputs of float8 layers once. `has_flash_3`: where there is no mask, attention is
    FlashAttention 3.
    """

    has_flash_3 = False

    def __init__(self, plain: QwenDoubleStreamAttnProcessor2_0) -> None:
        """In place of a processor, with the back end that was chosen for it."""
        super().__init__()
        self._attention_backend = plain._attention_backend
        self._parallel_config = plain._parallel_config

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Rotations | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Computes a block: images [B, tokens, width] and texts [B, tokens, width] to both of the
        same.
        """
        texts = encoder_hidden_states
        if (
            texts is None
            or attention_mask is not None
            or image_rotary_emb is None
            or not self._has_kernel(attn, hidden_states, texts)
        ):
            outputs: tuple[Tensor, Tensor] = super().__call__(
                attn,
                hidden_states,
                encoder_hidden_states,
                encoder_hidden_states_mask,
                attention_mask,
                image_rotary_emb,
            )
            return outputs
        image_rotations, text_rotations = image_rotary_emb
        text_layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        image_layers = (attn.to_q, attn.to_k, attn.to_v)
        text_norms = (attn.norm_added_q.weight, attn.norm_added_k.weight)
        image_norms = (attn.norm_q.weight, attn.norm_k.weight)
        query, key, value = join(
            _stream(texts, text_layers, text_norms, text_rotations),
            _stream(hidden_states, image_layers, image_norms, image_rotations),
            attn.inner_dim // attn.heads,
            attn.norm_q.eps,
        )
        mask = _joint_mask(encoder_hidden_states_mask, hidden_states)
        shared: Any = self._parallel_config  # what several ranks share, or None
        if self.has_flash_3 and mask is None:
            attended = (
                flash_3(query, key, value)
                if shared is None
                else shared.attend(flash_3, query, key, value)
            )
        else:
            attended = dispatch_attention_fn(
                query,
                key,
                value,
                attn_mask=mask,
                dropout_p=0.0,
                is_causal=False,
                backend=self._attention_backend,
                parallel_config=shared,
            )
        attended = attended.flatten(2, 3).to(query.dtype)
        text, image = attended.split([texts.shape[1], hidden_states.shape[1]], 1)
        image = image.contiguous()
        for layer in attn.to_out:
            image = layer(image)
        return image, attn.to_add_out(text.contiguous())

    def _has_kernel(self, attn: Any, images: Tensor, texts: Tensor) -> bool:
        return _is_half(images) and images.dtype == texts.dtype == attn.norm_q.weight.dtype


def _stream(
    tokens: Tensor, layers: Layers, norms: tuple[Tensor, Tensor], rotations: Tensor
) -> AttentionStream:
    query, key, value = products(tokens, layers)
    return AttentionStream(query, key, value, *norms, rotations)


def _joint_mask(mask: Tensor | None, images: Tensor) -> Tensor | None:
    """Extends a mask of texts' tokens [B, tokens] to all keys [B, 1, 1, tokens]; images are
    seen.
    """
    if mask is None:
        return None
    return torch.cat([mask, mask.new_ones(images.shape[:2])], 1)[:, None, None, :]


class GeluProduct(nn.Module):
    """Diffusers' GELU with tanh behind a linear layer: on a GPU the product's kernel computes it.

    The layer keeps its name, and may be any other: then it is called. `leaves_gelu`: to the layer
    after it.
    """

    leaves_gelu = False

    def __init__(self, proj: nn.Module) -> None:
        """The linear layer."""
        super().__init__()
        self.proj = proj

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        layer = self.proj
        if self.leaves_gelu:
            product: Tensor = layer(hidden_states)
            return product
        if type(layer) is not nn.Linear or layer.bias is None or not _is_half(hidden_states):
            return gelu(layer(hidden_states), approximate="tanh")
        rows = hidden_states.reshape(-1, layer.in_features)
        # On CUDA this GELU is the one with tanh; on a CPU it is not.
        made = torch._addmm_activation(layer.bias, rows, layer.weight.t(), use_gelu=True)
        return made.view(*hidden_states.shape[:-1], layer.out_features)


class Modulation(nn.Sequential):
    """The layer that makes a block's modulations of the time: SiLU and a linear layer of any kind.

    With a kernel for a single row, for which the rate of the weights' bytes is all that counts.
    """

    def forward(self, time: Tensor) -> Tensor:
        """[B, in] to [B, out]."""
        activation, layer = self
        rows = activation(time)
        if len(rows) != 1 or not _is_half(rows):
            return layer(rows)
        if type(layer) is nn.Linear:
            return multiply_row(rows, layer.weight, layer.bias)
        if type(layer) is Float8Linear:  # its inputs need no rounding here
            return multiply_row(rows, layer.weight, layer.bias, layer.scale)
        return layer(rows)


def _is_half(inputs: Tensor) -> bool:
    """Returns whether there are kernels for them."""
    return inputs.device.type == DEVICE and inputs.dtype in HALVES
