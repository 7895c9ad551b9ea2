"""Qwen3-Omni's vocoder as a decoder of many streams: codec frames in, samples out, no seams.

Everything in the vocoder is causal but for a few samples of look-ahead, so each stream carries its
state (keys and values of the window, left context of every convolution) from chunk to chunk. The
samples of all chunks together equal one decode of the whole utterance, and nothing is computed
twice.
"""

import math

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder_weights import empty_vocoder, load_vocoder
from omnistage.stages.vocoder.checkpoint_vocoder import CheckpointVocoder
from omnistage.stages.vocoder.code_decoder import Codec
from omnistage.stages.vocoder.layers.sound import sound_layers
from omnistage.stages.vocoder.layers.transformer import window_transformer
from omnistage.stages.vocoder.layers.upsampling import upsampling_layers
from omnistage.stages.vocoder.state import StateLayout, StreamBatch

SAMPLE_RATE_HZ = 24_000  # of the codec; the checkpoint does not say it


class StreamingVocoder(CheckpointVocoder[Qwen3OmniMoeCode2Wav]):
    """Owns the weights and the state of up to `num_slots` streams."""

    read, empty = staticmethod(load_vocoder), staticmethod(empty_vocoder)

    def make_layers(self, model: Qwen3OmniMoeCode2Wav, layout: StateLayout) -> Codec:
        """Makes the layers of the reference, each with its region of a stream's state."""
        self._embedding = model.code_embedding
        self._offsets = model.code_offset
        self._transformer = window_transformer(model.pre_transformer, layout)
        self._upsampling = upsampling_layers(model.upsample, layout)
        self._sound = sound_layers(model.decoder, layout)
        return _codec_of(model.config, self._sound.num_muted)

    def forward(self, codes: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """The next frames of a batch of streams."""
        hidden = self._embedding(codes + self._offsets).mean(1)
        hidden = self._transformer(hidden, batch)
        return self._sound(self._upsampling(hidden, batch), batch)


def _codec_of(config: Qwen3OmniMoeCode2WavConfig, num_held_back: int) -> Codec:
    samples_per_frame = math.prod([*config.upsampling_ratios, *config.upsample_rates])
    if num_held_back >= samples_per_frame:
        raise ValueError("the vocoder must look less than one frame ahead")
    return Codec(
        config.num_quantizers,
        config.codebook_size,
        samples_per_frame,
        SAMPLE_RATE_HZ,
        num_held_back=num_held_back,
    )
