"""Qwen3-Omni's vocoder as a decoder of many streams: codec frames in, samples out, no seams.

Everything in the vocoder is causal but for a few samples of look-ahead, so each stream carries its
state (keys and values of the window, left context of every convolution) from chunk to chunk. The
samples of all chunks together equal one decode of the whole utterance, and nothing is computed
twice.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder_weights import empty_vocoder, load_vocoder
from omnistage.stages.vocoder.code_decoder import Codec, CodeDecoder
from omnistage.stages.vocoder.layers.convolutions import (
    CausalConvolution,
    ConvNeXtBlock,
    DecoderBlock,
    Snake,
)
from omnistage.stages.vocoder.layers.transformer import WindowTransformer
from omnistage.stages.vocoder.state import StateLayout, StreamBatch

SAMPLE_RATE_HZ = 24_000  # of the codec; the checkpoint does not say it


class StreamingVocoder(CodeDecoder):
    """Owns the weights and the state of up to `num_slots` streams."""

    def __init__(self, model: Qwen3OmniMoeCode2Wav, num_slots: int) -> None:
        self.model = model
        self.weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
        layout = StateLayout()
        self._embedding = model.code_embedding
        self._offsets = model.code_offset
        self._transformer = WindowTransformer(model.pre_transformer, layout)
        stages: Iterable[Any] = model.upsample
        self._upsampling = [
            (upsampling.conv, ConvNeXtBlock(block, layout)) for upsampling, block in stages
        ]
        decoder: Iterable[Any] = model.decoder
        first, *blocks, snake, last = decoder
        self._first = CausalConvolution(first, layout)
        self._blocks: list[DecoderBlock] = []
        num_muted = 0
        for block in blocks:
            self._blocks.append(DecoderBlock(block, layout, num_muted))
            num_muted = self._blocks[-1].num_muted
        self._snake = Snake(snake)
        self._last = CausalConvolution(last, layout, num_muted)
        super().__init__(
            _codec_of(model.config, num_muted), layout, num_slots, model.code_embedding.weight
        )

    @classmethod
    def from_checkpoint(
        cls,
        model: str,
        device: torch.device,
        dtype: torch.dtype,
        num_slots: int,
        *,
        has_weights: bool = True,
    ) -> "StreamingVocoder":
        """Load the vocoder of a checkpoint folder or hub name."""
        return cls(load_vocoder(model, device, dtype, has_weights=has_weights), num_slots)

    @classmethod
    def memory(cls, model: str, dtype: torch.dtype, num_slots: int) -> dict[str, int]:
        """Bytes that such a vocoder holds, by what for; nothing is loaded."""
        vocoder = cls(empty_vocoder(model, dtype), num_slots=1)
        return {"weights": vocoder.weight_bytes, "slots": num_slots * vocoder.slots.bytes_each}

    def forward(self, codes: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        """The next frames of a batch of streams."""
        hidden = self._embedding(codes + self._offsets).mean(1)
        hidden = self._transformer(hidden, batch).transpose(1, 2)
        for upsample, block in self._upsampling:
            hidden = block(upsample(hidden), batch)
        hidden = self._first(hidden, batch)
        for decoder_block in self._blocks:
            hidden = decoder_block(hidden, batch)
        hidden = self._last(self._snake(hidden), batch)
        return hidden[:, 0].clamp(-1, 1).float()


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
