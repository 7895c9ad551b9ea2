"""Qwen3-TTS's vocoder as a decoder of many streams: codec frames in, samples out, no seams.

Everything in it is causal, so each stream carries its state (keys and values of the window, left
context of every convolution) from chunk to chunk and nothing is held back: n frames are at once
the samples of n frames. The samples of all chunks together equal one decode of all their frames.
"""

from typing import Any

import torch
from torch import nn

from omnistage.stages.qwen3_tts.codec_decoder import (
    CodecDecoder,
    Quantizer,
    SplitQuantizer,
    samples_per_frame,
)
from omnistage.stages.qwen3_tts.codec_weights import empty_codec_decoder, load_codec_decoder
from omnistage.stages.vocoder.checkpoint_vocoder import CheckpointVocoder
from omnistage.stages.vocoder.code_decoder import Codec
from omnistage.stages.vocoder.layers.convolutions import CausalConvolution
from omnistage.stages.vocoder.layers.sound import sound_layers
from omnistage.stages.vocoder.layers.transformer import window_transformer
from omnistage.stages.vocoder.layers.upsampling import upsampling_layers
from omnistage.stages.vocoder.state import StateLayout, StreamBatch

SAMPLE_RATE_HZ = 24_000


class CodeVectors:
    """A split quantizer's vectors of codes, summed and projected."""

    def __init__(self, quantizer: SplitQuantizer) -> None:
        self._parts = quantizer.rvq_first, quantizer.rvq_rest

    def __call__(self, codes: torch.Tensor) -> torch.Tensor:
        first, rest = self._parts
        num_first = len(first.codebooks)
        return _vectors(first, codes[:, :num_first]) + _vectors(rest, codes[:, num_first:])


def _vectors(quantizer: Quantizer, codes: torch.Tensor) -> torch.Tensor:
    """Returns the vectors of codes [B, codebooks, n]: [B, width, n]."""
    books = torch.arange(codes.shape[1], device=codes.device)[:, None]
    summed = quantizer.codebooks[books, codes].sum(1)
    vectors: torch.Tensor = quantizer.output_proj(summed.transpose(1, 2))
    return vectors


class StreamingVocoder(CheckpointVocoder[CodecDecoder]):
    """Owns the weights and the state of up to `num_slots` streams."""

    read, empty = staticmethod(load_codec_decoder), staticmethod(empty_codec_decoder)

    def make_layers(self, model: CodecDecoder, layout: StateLayout) -> Codec:
        """Makes the layers of the reference, each with its region of a stream's state."""
        self._vectors = CodeVectors(model.quantizer)
        self._first_context = CausalConvolution(model.pre_conv, layout)
        self._transformer = ProjectedTransformer(model.pre_transformer, layout)
        self._upsampling = upsampling_layers(model.upsample, layout)
        self._sound = sound_layers(model.decoder, layout)
        return _codec_of(model.config)

    def forward(self, codes: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """The next frames of a batch of streams."""
        hidden = self._first_context(self._vectors(codes), batch)
        hidden = self._transformer(hidden.transpose(1, 2), batch)
        return self._sound(self._upsampling(hidden, batch), batch)


class ProjectedTransformer:
    """A transformer of another width than what is around it."""

    def __init__(self, net: Any, layout: StateLayout) -> None:
        self._input: nn.Linear = net.input_proj
        self._output: nn.Linear = net.output_proj
        self._transformer = window_transformer(net, layout)

    def __call__(self, hidden: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        output: torch.Tensor = self._output(self._transformer(self._input(hidden), batch))
        return output


def _codec_of(config: Any) -> Codec:
    return Codec(
        config.num_quantizers, config.codebook_size, samples_per_frame(config), SAMPLE_RATE_HZ
    )
