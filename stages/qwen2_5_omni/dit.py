"""Qwen2.5-Omni's DiT over a list of blocks, whoever's they are.

Of its layers all but three see one block of mel frames only, and those three see the block before
or the block after too. So a batch is a list of blocks with the places of their neighbours: nothing
is padded to the longest window, and windows at different times share a forward. Each block has two
rows, with its code and its speaker and without: guidance goes from the second towards the first.

On a CPU each block is a matrix product of its own, so what is computed of a block does not depend,
to the last bit, on which others are in the list.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

from omnistage.stages.qwen2_5_omni.dit_blocks import BlockList, Window, make_block_list
from omnistage.stages.qwen2_5_omni.dit_graphs import DiTGraphs
from omnistage.stages.qwen2_5_omni.flow import make_times

GUIDANCE = 0.5
NORM_EPS = 1e-6


class BlockDiT:
    """The velocity of new blocks; `model`'s weights are used and not copied.

    What depends on times, codes and speakers only is computed beforehand: the embeddings of all
    times with every layer's scales, shifts and gates, and the projection of each code.
    """

    @torch.inference_mode()
    def __init__(self, model: Qwen2_5OmniToken2WavDiTModel) -> None:
        net: Any = model
        self._zero: torch.Tensor = net.proj_out.bias.new_zeros(())
        self.times = make_times(self._zero.dtype)
        self.config: Qwen2_5OmniDiTConfig = net.config
        self.block_frames: int = self.config.block_size
        self.codes_per_block: int = self.block_frames // self.config.repeats
        self.depth = len(self.config.look_backward_layers)
        self._encoder = net.input_embed.spk_encoder
        self._state_weight, self._rest_weight = _split_projection(net.input_embed.proj, self.config)
        self._code_rows = self._rows_of_codes(net)
        embedded = net.time_embed(self.times.values.to(self._zero))
        embedded = functional.silu(embedded)
        self._layers = [
            BlockLayer(layer, embedded, number, self.config)
            for number, layer in enumerate(net.transformer_blocks)
        ]
        self._last = net.norm_out.linear(embedded).unflatten(1, (2, -1))
        self._proj_out = net.proj_out
        self._cos, self._sin = self._rotations(net)
        self._graphs = DiTGraphs()

    @property
    def device(self) -> torch.device:
        """Its weights'."""
        return self._zero.device

    def empty(self, *shape: int) -> torch.Tensor:
        """A tensor of the states' dtype on its device."""
        return self._zero.new_empty(shape)

    @property
    def max_blocks(self) -> int:
        """What the positions of an answer may be."""
        return len(self._cos)

    @property
    def table_bytes(self) -> int:
        """What was computed beforehand."""
        tables = [self._code_rows, self._last, self._cos, self._sin]
        return sum(table.nbytes for table in [*tables, *(one.modulation for one in self._layers)])

    @torch.inference_mode()
    def voice(self, vector: torch.Tensor, reference_mel: torch.Tensor) -> torch.Tensor:
        """What is added for a speaker [1, …], and for nobody without any code: [2, width]."""
        mels = torch.cat([reference_mel, torch.zeros_like(reference_mel)]).to(self._zero)
        vectors = torch.cat([vector, torch.zeros_like(vector)]).to(self._zero)
        encoder_dim, code_dim = self.config.enc_dim, self.config.emb_dim
        encoder_weight = self._rest_weight[:, :encoder_dim]
        vector_weight = self._rest_weight[:, encoder_dim + code_dim :]
        rows = functional.linear(self._encoder(mels), encoder_weight)
        rows = rows + functional.linear(vectors, vector_weight)
        return torch.stack([rows[0], rows[1] + self._code_rows[0]])

    def velocities(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Of the new blocks of each window, [blocks, frames, mel]."""
        blocks = make_block_list(windows, self.depth, self.codes_per_block)
        velocity = self._graphs.velocity(blocks)
        if velocity is None:
            velocity = self.velocity(blocks)
        return list(velocity.split([window.num_new for window in windows]))

    @torch.inference_mode()
    def capture(self, windows: Sequence[Window]) -> None:
        """Record graphs of lists such as that of these windows."""
        example = make_block_list(windows, self.depth, self.codes_per_block)
        self._graphs.record(self.velocity, example)

    def velocity(self, blocks: BlockList) -> torch.Tensor:
        """Of the new blocks of a list, [blocks, frames, mel]."""
        hidden = self._embed(blocks)
        rotation = self._cos[blocks.positions], self._sin[blocks.positions]
        for layer in self._layers:
            hidden = layer(hidden, blocks, rotation)
        scale, shift = self._last[blocks.times[: len(hidden)]][:, :, None, None].unbind(1)
        hidden = _norm(hidden) * (1 + scale) + shift
        guided, free = blockwise_linear(hidden, self._proj_out).unbind(1)
        return guided + (guided - free) * GUIDANCE

    def _embed(self, blocks: BlockList) -> torch.Tensor:
        """[blocks, 2, frames, width]: one row for the code and the speaker, and one for neither."""
        hidden = _product(blocks.state, self._state_weight, None)
        hidden = hidden[:, None] + blocks.voices[:, :, None]
        repeats = self.config.repeats
        hidden[:, 0] += self._code_rows[blocks.codes].repeat_interleave(repeats, 1)
        return hidden

    def _rows_of_codes(self, net: Any) -> torch.Tensor:
        start = self.config.enc_dim
        weight = self._rest_weight[:, start : start + self.config.emb_dim]
        codes: torch.Tensor = net.text_embed.codec_embed.weight
        return functional.linear(codes, weight, net.input_embed.proj.bias)

    def _rotations(self, net: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [blocks, frames, head_dim] of all positions, made in float32."""
        num_blocks = self.config.max_position_embeddings // self.block_frames
        places = torch.arange(num_blocks * self.block_frames, device=self.device)
        cos, sin = net.rotary_embed(self._zero, places[None])
        shape = num_blocks, self.block_frames
        return cos[0].unflatten(0, shape), sin[0].unflatten(0, shape)


class BlockLayer:
    """One layer: attention in blocks and, of some layers, to a neighbour; then its MLP."""

    def __init__(
        self, net: Any, embedded: torch.Tensor, number: int, config: Qwen2_5OmniDiTConfig
    ) -> None:
        self._attention = net.attn
        self._first, _, _, self._second = net.ff.ff
        self._looks_left = number in config.look_backward_layers
        self._looks_right = number in config.look_ahead_layers
        if self._looks_left and self._looks_right:
            raise ValueError(f"layer {number} of the DiT looks both ways")
        self._num_heads = config.num_attention_heads
        self._dtype = net.attn.to_q.weight.dtype
        # Past blocks are needed as long as a layer further on looks back.
        self._depth = sum(other > number for other in config.look_backward_layers)
        self.modulation = net.attn_norm.linear(embedded).unflatten(1, (6, -1))

    def __call__(
        self,
        hidden: torch.Tensor,
        blocks: BlockList,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """[blocks, 2, frames, width], of the blocks that are needed further on."""
        count = blocks.counts[self._depth]
        modulation = self.modulation[blocks.times[: len(hidden)]][:, :, None, None]
        shift, scale, gate, *_ = modulation.unbind(1)
        attended = self._attend(_norm(hidden) * (1 + scale) + shift, count, blocks, rotation)
        hidden = hidden[:count] + gate[:count] * attended
        *_, shift, scale, gate = modulation[:count].unbind(1)
        inner = blockwise_linear(_norm(hidden) * (1 + scale) + shift, self._first)
        inner = functional.gelu(inner, approximate="tanh")
        return hidden + gate * blockwise_linear(inner, self._second)

    def _attend(
        self,
        hidden: torch.Tensor,
        count: int,
        blocks: BlockList,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        net = self._attention
        cos, sin = (one[: len(hidden), None] for one in rotation)
        query = self._heads(net.to_q, hidden[:count])
        key, value = (self._heads(one, hidden) for one in (net.to_k, net.to_v))
        _rotate_first_head(query, cos[:count], sin[:count])
        _rotate_first_head(key, cos, sin)
        sees = blocks.sees_self
        if self._looks_left:
            left, sees = blocks.left[:count], blocks.sees_left
            key, value = (torch.cat([one[left], one[:count]], 2) for one in (key, value))
        elif self._looks_right:
            right, sees = blocks.right[:count], blocks.sees_right
            key, value = (torch.cat([one[:count], one[right]], 2) for one in (key, value))
        query, key, value = (
            one.flatten(0, 1).transpose(1, 2).to(self._dtype) for one in (query, key, value)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=sees[: 2 * count]
        )
        attended = attended.transpose(1, 2).flatten(2).unflatten(0, (-1, 2)).to(hidden.dtype)
        return blockwise_linear(attended, net.to_out[0])

    def _heads(self, net: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        """[blocks, 2, frames, heads, head_dim]."""
        return blockwise_linear(hidden, net).unflatten(-1, (self._num_heads, -1))


def blockwise_linear(hidden: torch.Tensor, net: nn.Linear) -> torch.Tensor:
    """A linear layer of [blocks, 2, frames, size], computed in the dtype of its weight."""
    rows = hidden.flatten(1, 2).to(net.weight.dtype)
    return _product(rows, net.weight, net.bias).unflatten(1, hidden.shape[1:3]).to(hidden.dtype)


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[blocks, rows, size]; on a CPU one product a block, the same for any number of them."""
    if rows.device.type != "cpu":
        return functional.linear(rows, weight, bias)
    weights = weight.t().expand(len(rows), -1, -1)
    return torch.bmm(rows, weights) if bias is None else torch.baddbmm(bias, rows, weights)


def _norm(hidden: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:], eps=NORM_EPS)


def _rotate_first_head(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """The others have no positions. Pairs are neighbours, and come out as two halves."""
    first = heads[..., 0, :]
    even, odd = first[..., 0::2], first[..., 1::2]
    halves = torch.cat([even, odd], -1)
    turned = torch.cat([-odd, even], -1)
    heads[..., 0, :] = halves * cos + turned * sin


def _split_projection(
    proj: nn.Linear, config: Qwen2_5OmniDiTConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights for the state, and those for speaker, code and speaker's vector."""
    return proj.weight[:, : config.mel_dim], proj.weight[:, config.mel_dim :]
