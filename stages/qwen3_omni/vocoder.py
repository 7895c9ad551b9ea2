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
from omnistage.stages.qwen3_omni.vocoder_weights import empty_vocoder, load_vocoder
from omnistage.stages.vocoder.graphs import DecodeGraphs
from omnistage.stages.vocoder.state import StateLayout, StreamBatch


@dataclass(slots=True)
class VocoderState:
    """One stream: its places in the state tensors and how far it is.

    A decode reads `slot` and writes `next_slot`, and leaves all else to `advance`: one that fails,
    wherever it does, has changed nothing.
    """

    slot: int
    next_slot: int
    num_frames: int = 0

    def advance(self, num_frames: int) -> None:
        """Go on from what the last decode has written."""
        self.slot, self.next_slot = self.next_slot, self.slot
        self.num_frames += num_frames


class StreamingVocoder:
    """Owns the weights and the state of up to `num_slots` streams."""

    def __init__(self, model: Qwen3OmniMoeCode2Wav, num_slots: int) -> None:
        config = model.config
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

        self.device = self._embedding.weight.device
        self.num_slots = num_slots
        self.num_codebooks: int = config.num_quantizers
        self.codebook_size: int = config.codebook_size
        self.samples_per_frame = math.prod([*config.upsampling_ratios, *config.upsample_rates])
        self.num_held_back = num_muted
        if self.num_held_back >= self.samples_per_frame:
            raise ValueError("the vocoder must look less than one frame ahead")
        weights = self._embedding.weight
        spare_slot = 2 * num_slots
        self._rows = weights.new_zeros(spare_slot + 1, layout.num_elements)
        self._positions = torch.zeros(spare_slot + 1, dtype=torch.int64, device=self.device)
        self._graphs = DecodeGraphs(self._decode, spare_slot)
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

    @classmethod
    def memory(cls, model: str, dtype: torch.dtype, num_slots: int) -> dict[str, int]:
        """Bytes that such a vocoder holds, by what for; nothing is loaded."""
        vocoder = cls(empty_vocoder(model, dtype), num_slots=1)
        return {"weights": vocoder.weight_bytes, "slots": num_slots * vocoder.state_bytes}

    # Streams

    @property
    def num_free(self) -> int:
        """Streams that may still be opened."""
        return len(self._free)

    @property
    def state_bytes(self) -> int:
        """Memory that one stream's state takes."""
        return 2 * self._rows.shape[1] * self._rows.element_size()

    def open(self) -> VocoderState:
        """A new stream; the caller checks `num_free`."""
        slot = self._free.pop()
        self._rows[slot].zero_()
        self._positions[slot].zero_()
        return VocoderState(slot, slot + self.num_slots)

    def close(self, state: VocoderState) -> None:
        """Free the slots of a stream."""
        self._free.append(min(state.slot, state.next_slot))

    # Decoding

    @torch.inference_mode()
    def decode(
        self, states: Sequence[VocoderState], codes: torch.Tensor
    ) -> tuple[torch.Tensor, list[int]]:
        """Compute the next n frames of each stream: codes int64 [B, codebooks, n].

        The streams stay where they are until `advance`, so that this can be done again. Returns
        float32 [B, n * samples_per_frame] on the device, and where each row's sound starts: a
        stream's first chunk has `num_held_back` samples less, the others come late by as much, and
        a whole utterance ends that much early.
        """
        starts = [0 if state.num_frames else self.num_held_back for state in states]
        slots = torch.tensor([(state.slot, state.next_slot) for state in states])
        pcm = self._graphs.decode(slots, codes)
        if pcm is None:
            pcm = self._decode(slots.to(self.device), codes.to(self.device))
        return pcm, starts

    @torch.inference_mode()
    def record(self, num_rows: int, num_frames: int) -> None:
        """Keep a CUDA graph for batches of this shape."""
        shape = num_rows, self.num_codebooks, num_frames
        self._graphs.record(torch.zeros(shape, dtype=torch.int64, device=self.device))

    def _decode(self, slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Shapes depend on those of the arguments only, and nothing waits for the device."""
        source, target = slots.unbind(1)
        rows = self._rows[source]
        positions = self._positions[source]
        started = (positions > 0).to(rows.dtype)[:, None, None]
        pcm = self._forward(codes, StreamBatch(rows, positions, started))
        self._rows[target] = rows
        self._positions[target] = positions + codes.shape[-1]
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
