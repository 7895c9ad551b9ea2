"""VoxCPM2's audio VAE as a decoder of many streams: patches of latents in, samples out, no seams.

Everything in it is causal, so each stream carries the left context of every convolution from piece
to piece, and a patch is at once its samples. All pieces together equal one decode of all patches.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn

from omnistage.stages.vocoder.checkpoint_vocoder import CheckpointVocoder, CheckpointVocoderStage
from omnistage.stages.vocoder.code_decoder import Latents
from omnistage.stages.vocoder.layers.convolutions import CausalConvolution, Upsampling
from omnistage.stages.vocoder.state import StateLayout, StreamBatch
from omnistage.stages.voxcpm2.audio_vae import (
    CausalConv,
    RateCondition,
    Residual,
    VaeBlock,
    VaeDecoder,
    VaeSnake,
)
from omnistage.stages.voxcpm2.settings import AudioVaeConfig
from omnistage.stages.voxcpm2.vae_weights import empty_decoder, load_decoder


class Unpadded:
    """A causal convolution whose past comes with its input."""

    def __init__(self, conv: CausalConv) -> None:
        self._conv = conv
        self.in_channels = conv.in_channels

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.Conv1d.forward(self._conv, hidden)


def carried(conv: CausalConv, layout: StateLayout) -> CausalConvolution:
    """A convolution that goes on from the piece before."""
    return CausalConvolution(SimpleNamespace(conv=Unpadded(conv), padding=conv.num_past), layout)


class CarriedResidual:
    """A convolution with gaps, and one of a single step, on top of the input."""

    def __init__(self, net: Residual, layout: StateLayout) -> None:
        self._first, wide, self._second, self._narrow = net.block
        assert isinstance(wide, CausalConv)
        self._wide = carried(wide, layout)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        inner = self._wide(self._first(hidden), batch)
        output: torch.Tensor = hidden + self._narrow(self._second(inner))
        return output


class CarriedBlock:
    """More steps of half the channels."""

    def __init__(
        self, net: VaeBlock, condition: RateCondition | None, bucket: int, layout: StateLayout
    ) -> None:
        self._snake, upsampling, *residuals = net.block
        self._scale = self._offset = None
        if condition is not None:
            self._scale = condition.scale_embed.weight[bucket][:, None]
            self._offset = condition.bias_embed.weight[bucket][:, None]
        self._upsampling = Upsampling(SimpleNamespace(conv=upsampling, left_pad=0), layout, 0)
        self._residuals = [
            CarriedResidual(one, layout) for one in residuals if isinstance(one, Residual)
        ]

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        if self._scale is not None and self._offset is not None:
            hidden = hidden * self._scale + self._offset
        hidden = self._upsampling(self._snake(hidden), batch)
        for residual in self._residuals:
            hidden = residual(hidden, batch)
        return hidden


class StreamingVae(CheckpointVocoder[VaeDecoder]):
    """Owns the weights and the state of up to `num_slots` streams."""

    read, empty = staticmethod(load_decoder), staticmethod(empty_decoder)

    def make_layers(self, model: VaeDecoder, layout: StateLayout) -> Latents:
        """Makes the layers of the reference, each with its region of a stream's state."""
        config = model.config
        bucket = bucket_of(config)
        self._heads = [carried(conv, layout) for conv in model.heads]
        self._blocks = [CarriedBlock(*pair, bucket, layout) for pair in model.blocks]
        snake, last = model.model[-2:]
        assert isinstance(snake, VaeSnake)
        assert isinstance(last, CausalConv)
        self._snake, self._last = snake, carried(last, layout)
        patch_size = model.patch_size
        return Latents(
            (patch_size, config.latent_dim),
            patch_size * math.prod(config.decoder_rates),
            config.out_sample_rate,
        )

    def forward(self, frames: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """Samples of patches [B, patch, latent, n], in the weights' dtype."""
        hidden = frames.permute(0, 2, 3, 1).flatten(2).to(batch.rows.dtype)
        for head in self._heads:
            hidden = head(hidden, batch)
        for block in self._blocks:
            hidden = block(hidden, batch)
        sound = self._last(self._snake(hidden), batch)
        return sound[:, 0].tanh().float()


def bucket_of(config: AudioVaeConfig) -> int:
    """Returns which of the buckets of rates the sound that is made belongs to."""
    return sum(config.out_sample_rate > edge for edge in config.sr_bin_boundaries or ())


class VaeStage(CheckpointVocoderStage):
    """Patches of the talker in, PCM out; those of a reference sound may go ahead."""

    vocoder = StreamingVae
