"""Qwen2.5-Omni's DiT over a list of blocks, whoever's they are.

Of its layers all but three see one block of mel frames only, and those three see the block before
or the block after too. So a batch is a list of blocks with the places of their neighbours: nothing
is padded to the longest window, and windows at different times share a forward. Each block has two
rows, with its code and its speaker and without: guidance goes from the second towards the first.

On a CPU what is computed of a block does not depend, to the last bit, on which others are in the
list.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

from omnistage.stages.qwen2_5_omni.token2wav.dit_blocks import (
    COLUMNS,
    BlockLayout,
    BlockList,
    Tables,
    Window,
    lay_out,
    make_block_list,
)
from omnistage.stages.qwen2_5_omni.token2wav.dit_graphs import DiTGraphs
from omnistage.stages.qwen2_5_omni.token2wav.dit_layers import (
    Layers,
    blockwise,
    blockwise_linear,
    layers_of,
)
from omnistage.stages.qwen2_5_omni.token2wav.flow import make_times

GUIDANCE = 0.5


class BlockDiT:
    """The velocity of new blocks; `model`'s weights are used and not copied.

    What depends on times, codes and speakers only is computed beforehand: the embeddings of all
    times with every layer's scales, shifts and gates, and the projection of each code.
    """

    @torch.inference_mode()
    def __init__(self, model: Qwen2_5OmniToken2WavDiTModel) -> None:
        net: Any = model
        self._zero: torch.Tensor = net.proj_out.bias.new_zeros(())
        self.times = make_times(self._zero.dtype).on(self.device)
        self.config: Qwen2_5OmniDiTConfig = net.config
        self.block_frames: int = self.config.block_size
        self.codes_per_block: int = self.block_frames // self.config.repeats
        self.depth = len(self.config.look_backward_layers)
        self._encoder = net.input_embed.spk_encoder
        self._state_weight, self._rest_weight = _split_projection(net.input_embed.proj, self.config)
        self._code_rows = self._rows_of_codes(net)
        embedded = functional.silu(net.time_embed(self.times.values.to(self._zero)))
        self._cos, self._sin = self._rotations(net)
        self._tables = Tables(
            [
                layer.attn_norm.linear(embedded).unflatten(1, (6, -1))
                for layer in net.transformer_blocks
            ],
            net.norm_out.linear(embedded).unflatten(1, (2, -1)),
            self._cos,
            self._sin,
        )
        self._layers: Layers = layers_of(net, self._tables)
        self._proj_out = net.proj_out
        self._graphs = DiTGraphs()

    @property
    def device(self) -> torch.device:
        """Returns the device of its weights."""
        return self._zero.device

    def empty(self, *shape: int) -> torch.Tensor:
        """A tensor of the states' dtype on its device."""
        return self._zero.new_empty(shape)

    @property
    def max_blocks(self) -> int:
        """Returns what the positions of an answer may be."""
        return len(self._cos)

    @property
    def table_bytes(self) -> int:
        """Returns what was computed beforehand."""
        return self._code_rows.nbytes + self._tables.nbytes

    @torch.inference_mode()
    def voice(self, vector: torch.Tensor, reference_mel: torch.Tensor) -> torch.Tensor:
        """Returns what is added for a speaker [1, …], and for nobody without any code: [2,
        width].
        """
        mels = torch.cat([reference_mel, torch.zeros_like(reference_mel)]).to(self._zero)
        vectors = torch.cat([vector, torch.zeros_like(vector)]).to(self._zero)
        encoder_dim, code_dim = self.config.enc_dim, self.config.emb_dim
        encoder_weight = self._rest_weight[:, :encoder_dim]
        vector_weight = self._rest_weight[:, encoder_dim + code_dim :]
        rows = functional.linear(self._encoder(mels), encoder_weight)
        rows = rows + functional.linear(vectors, vector_weight)
        return torch.stack([rows[0], rows[1] + self._code_rows[0]])

    def velocities(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Returns the velocities of each window's new blocks, [blocks, frames, mel]."""
        layout = self.lay_out(windows)
        velocity = self._graphs.velocity(windows, layout)
        if velocity is None:
            velocity = self.velocity(make_block_list(windows, layout))
        return list(velocity.split([window.num_new for window in windows]))

    @torch.inference_mode()
    def capture(self, windows: Sequence[Window]) -> None:
        """Record graphs of lists such as that of these windows."""
        self._graphs.record(self.velocity, make_block_list(windows, self.lay_out(windows)))

    def lay_out(self, windows: Sequence[Window]) -> BlockLayout:
        """The list of the windows' blocks."""
        return lay_out(windows, self.depth, self.codes_per_block, self.config.repeats)

    def velocity(self, blocks: BlockList) -> torch.Tensor:
        """Returns the velocities of a list's new blocks, [blocks, frames, mel]."""
        hidden = self._layers(self._embed(blocks), blocks)
        guided, free = blockwise_linear(hidden, self._proj_out).unbind(1)
        return guided + (guided - free) * GUIDANCE

    def _embed(self, blocks: BlockList) -> torch.Tensor:
        """[blocks, 2, frames, width]: one row for the code and the speaker, and one for neither."""
        hidden = blockwise(blocks.state, self._state_weight, None)
        voices = blocks.voices[blocks.column(COLUMNS.window)]
        hidden = hidden[:, None] + voices[:, :, None]
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


def _split_projection(
    proj: nn.Linear, config: Qwen2_5OmniDiTConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights for the state, and those for speaker, code and speaker's vector."""
    return proj.weight[:, : config.mel_dim], proj.weight[:, config.mel_dim :]
