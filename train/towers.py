"""The thinker's towers in training: the sums of transformers' with few kernels and no waiting."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from language.samples import HOP
from loop import dense_experts
from torch import nn
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

PATCH, MERGE = 16, 2


@dataclass
class Segments:
    """Segments of packed rows as a padded batch, made where nothing waits for a GPU."""

    index: torch.Tensor  # int64 [segments, longest], into the packed rows
    valid: torch.Tensor  # bool [segments, longest]
    back: torch.Tensor  # int64 [rows], into the flat padded rows

    @classmethod
    def of(cls, bounds: torch.Tensor) -> "Segments":
        """From where segments begin and end, int [segments + 1]."""
        lengths = (bounds[1:] - bounds[:-1]).long()
        steps = torch.arange(int(lengths.max()))
        valid = steps < lengths[:, None]
        index = (bounds[:-1, None].long() + steps).clamp(max=int(bounds[-1]) - 1)
        return cls(index, valid, valid.flatten().nonzero()[:, 0])

    def to(self, device: torch.device) -> "Segments":
        parts = (self.index, self.valid, self.back)
        return Segments(*(one.to(device, non_blocking=True) for one in parts))


SEGMENTS: dict[str, Segments] = {}  # of the batch at hand, by the tower that reads it


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tower: str, scale: float
) -> torch.Tensor:
    """Attention within segments of packed rows [n, heads, d], all segments at once."""
    segments = SEGMENTS[tower]
    query, key, value = (
        one.index_select(0, segments.index.flatten())
        .unflatten(0, segments.index.shape)
        .transpose(1, 2)
        for one in (query, key, value)
    )
    scores = (query @ key.transpose(2, 3)).float() * scale
    scores = scores.masked_fill(~segments.valid[:, None, None], -1e4)
    made = scores.softmax(-1).to(value.dtype) @ value
    return made.transpose(1, 2).flatten(0, 1).index_select(0, segments.back)


def audio_attention(module: Any, hidden: torch.Tensor) -> Any:
    """The audio tower's layer, without its loop over segments."""
    shape = (len(hidden), module.num_heads, -1)
    query, key, value = (
        net(hidden).reshape(shape) for net in (module.q_proj, module.k_proj, module.v_proj)
    )
    made = packed_attention(query, key, value, "audio", module.scaling)
    return module.out_proj(made.reshape(len(hidden), -1))


def vision_attention(
    module: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
) -> Any:
    """The vision tower's layer, without its loop over pictures."""
    query, key, value = module.qkv(hidden).reshape(len(hidden), 3, module.num_heads, -1).unbind(1)
    query, key = modeling.apply_rotary_pos_emb_vision(query, key, *rotary)
    made = packed_attention(query, key, value, "vision", module.scaling)
    return module.proj(made.reshape(len(hidden), -1))


def speed_up() -> None:
    """Let transformers' classes compute the same with few kernels."""
    experts: Any = dense_experts
    for name in ("Qwen3OmniMoeThinkerTextExperts", "Qwen3OmniMoeTalkerTextExperts"):
        getattr(modeling, name).forward = experts
    modeling.Qwen3OmniMoeAudioAttention.forward = lambda self, hidden_states, *_, **__: (
        audio_attention(self, hidden_states)
    )
    modeling.Qwen3OmniMoeVisionPatchEmbed.forward = lambda self, hidden_states: F.linear(
        hidden_states, self.proj.weight.flatten(1), self.proj.bias
    )
    modeling.Qwen3OmniMoeVisionAttention.forward = (
        lambda self, hidden_states, *_, position_embeddings=None, **__: vision_attention(
            self, hidden_states, position_embeddings
        )
    )


class Mel(nn.Module):
    """WhisperFeatureExtractor's features of a batch, on its device."""

    filters: torch.Tensor
    window: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        filters = WhisperFeatureExtractor(feature_size=128).mel_filters
        self.register_buffer("filters", torch.from_numpy(np.asarray(filters)).float())
        self.register_buffer("window", torch.hann_window(400))

    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """[b, frames, 128] of waves float32 [b, n] of these lengths, whole hops each; 0 behind."""
        spectrum = torch.stft(waves, 400, HOP, window=self.window, return_complex=True)
        power = spectrum[..., :-1].abs() ** 2
        mel = (self.filters.T @ power).clamp(min=1e-10).log10()
        frames = lengths // HOP
        valid = torch.arange(mel.shape[-1], device=mel.device) < frames[:, None]
        peak = mel.masked_fill(~valid[:, None], -1e9).amax((1, 2), keepdim=True)
        mel = (torch.maximum(mel, peak - 8) + 4) / 4
        return mel.masked_fill(~valid[:, None], 0).transpose(1, 2)


def patches(pixels: torch.Tensor) -> torch.Tensor:
    """Rows of the vision tower [b * h / 16 * w / 16, 1536] of pictures uint8 [b, h, w, 3]."""
    values = (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    batch, channels, height, width = values.shape
    rows, columns = height // PATCH, width // PATCH
    values = values.reshape(
        batch, channels, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH
    ).permute(0, 2, 5, 3, 6, 1, 4, 7)
    values = values.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return values.reshape(batch * rows * columns, channels * 2 * PATCH * PATCH)


def pixel_rows(batch: dict[str, Any], device: torch.device) -> torch.Tensor:
    """The vision tower's input of all pictures in order."""
    rows = [patches(one.to(device, non_blocking=True)) for one in batch["pixels"].values()]
    return torch.cat(rows)[batch["patch_order"].to(device, non_blocking=True)]
