"""Qwen3-Omni's vocoder as a decoder of many streams: codec frames in, samples out, no seams.

Everything in the vocoder is causal but for a few samples of look-ahead, so each stream carries its
state (keys and values of the window, left context of every convolution) from chunk to chunk. The
samples of all chunks together equal one decode of the whole utterance, and nothing is computed
twice.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omnistage.stages.qwen3_omni.vocoder_convolutions import (
    CausalConvolution,
    ConvNeXtBlock,
    DecoderBlock,
    Snake,
)
from omnistage.stages.qwen3_omni.vocoder_transformer import WindowTransformer
from omnistage.stages.qwen3_omni.vocoder_weights import load_vocoder
from omnistage.stages.vocoder.graphs import DecodeGraphs
from omnistage.stages.vocoder.state import StateLayout, StreamBatch


@dataclass(slots=True)
class VocoderState:
    """One stream: its place in the state tensors and how far it is."""

    slot: int
    num_frames: int = 0


class StreamingVocoder:
    """Owns the weights and the state of up to `num_slots` streams."""

    def __init__(self, model: Qwen3OmniMoeCode2Wav, num_slots: int) -> None:
        config = model.config
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

        self.device = self._embedding.weight.device
        self.num_slots = num_slots
        self.num_codebooks: int = config.num_quantizers
        self.codebook_size: int = config.codebook_size
        self.samples_per_frame = math.prod([*config.upsampling_ratios, *config.upsample_rates])
        self.num_held_back = num_muted
        if self.num_held_back >= self.samples_per_frame:
            raise ValueError("the vocoder must look less than one frame ahead")
        weights = self._embedding.weight
        self._rows = weights.new_zeros(num_slots + 1, layout.num_elements)
        self._positions = torch.zeros(num_slots + 1, dtype=torch.int64, device=self.device)
        self._graphs = DecodeGraphs(self._decode, spare_slot=num_slots)
        self._free = list(reversed(range(num_slots)))

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

    # Streams

    @property
    def num_free(self) -> int:
        """Streams that may still be opened."""
        return len(self._free)

    @property
    def state_bytes(self) -> int:
        """Memory that one stream's state takes."""
        return self._rows.shape[1] * self._rows.element_size()

    def open(self) -> VocoderState:
        """A new stream; the caller checks `num_free`."""
        slot = self._free.pop()
        self._rows[slot].zero_()
        self._positions[slot].zero_()
        return VocoderState(slot)

    def close(self, state: VocoderState) -> None:
        """Free the slot of a stream."""
        self._free.append(state.slot)

    # Decoding

    @torch.inference_mode()
    def decode(
        self, states: Sequence[VocoderState], codes: torch.Tensor
    ) -> tuple[torch.Tensor, list[int]]:
        """Continue each stream by n frames: codes int64 [B, codebooks, n].

        Returns float32 [B, n * samples_per_frame] on the device, and where each row's sound
        starts: a stream's first chunk has `num_held_back` samples less, the others come late by
        as much, and a whole utterance ends that much early.
        """
        starts = [0 if state.num_frames else self.num_held_back for state in states]
        slots = torch.tensor([state.slot for state in states])
        pcm = self._graphs.decode(slots, codes)
        if pcm is None:
            pcm = self._decode(slots.to(self.device), codes.to(self.device))
        for state in states:
            state.num_frames += codes.shape[-1]
        return pcm, starts

    @torch.inference_mode()
    def record(self, num_rows: int, num_frames: int) -> None:
        """Keep a CUDA graph for batches of this shape."""
        shape = num_rows, self.num_codebooks, num_frames
        self._graphs.record(torch.zeros(shape, dtype=torch.int64, device=self.device))

    def _decode(self, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Shapes depend on those of the arguments only, and nothing waits for the device."""
        rows = self._rows[slots]
        positions = self._positions[slots]
        started = (positions > 0).to(rows.dtype)[:, None, None]
        pcm = self._forward(codes, StreamBatch(rows, positions, started))
        self._rows[slots] = rows
        self._positions[slots] = positions + codes.shape[-1]
        return pcm

    def _forward(self, codes: torch.Tensor, batch: StreamBatch) -> torch.Tensor:
        hidden = self._embedding(codes + self._offsets).mean(1)
        hidden = self._transformer(hidden, batch).transpose(1, 2)
        for upsample, block in self._upsampling:
            hidden = block(upsample(hidden), batch)
        hidden = self._first(hidden, batch)
        for decoder_block in self._blocks:
            hidden = decoder_block(hidden, batch)
        hidden = self._last(self._snake(hidden), batch)
        return hidden[:, 0].clamp(-1, 1).float()
