"""DreamID-Omni's denoiser: two Wan transformers, of a video and its audio, that see each other."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from diffusers import ModelMixin
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.transformers.transformer_wan import (
    WanTimeTextImageEmbedding,
    WanTransformerBlock,
)
from torch import Tensor, nn

from omnistage.stages.dreamid_omni.positions import (
    THETA,
    Rotation,
    audio_rotation,
    video_rotation,
)

EPS = 1e-6
PATCH = (1, 2, 2)  # of a video: latents, height, width
MULTIPLE = 256  # of the inner size of an audio's first layer
WINDOW = 7  # latents of an audio that its first layers see


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """Sizes of one of the two transformers."""

    channels: int
    size: int
    inner_size: int
    text_size: int
    time_size: int
    num_layers: int
    head_size: int


class TimeWaves(nn.Module):
    """Cosines and sines of times, in float64: at 999 float32 is 3e-5 away."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, times: Tensor) -> Tensor:
        """Return float32 [rows, size]."""
        half = self.size // 2
        steps = torch.arange(half, dtype=torch.float64, device=times.device)
        angles = torch.outer(times.double(), THETA ** (-steps / half))
        return torch.cat([angles.cos(), angles.sin()], dim=1).float()


class Tower(nn.Module):
    """The layers before and after the blocks of one of the two."""

    def __init__(self, sizes: TowerSizes, patch_embedding: nn.Module, patch_size: int) -> None:
        super().__init__()
        self.patch_embedding = patch_embedding
        self.condition_embedder = WanTimeTextImageEmbedding(
            sizes.size, sizes.time_size, 6 * sizes.size, sizes.text_size
        )
        self.condition_embedder.timesteps_proj = TimeWaves(sizes.time_size)
        self.norm_out = FP32LayerNorm(sizes.size, EPS, elementwise_affine=False)
        self.proj_out = nn.Linear(sizes.size, sizes.channels * patch_size)
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 2, sizes.size))

    def conditions(self, timestep: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return embedded times [rows, size], modulations [rows, 6, size], texts."""
        times, modulations, text, _ = self.condition_embedder(timestep, text)
        return times, modulations.unflatten(1, (6, -1)), text

    def velocity(self, hidden: Tensor, times: Tensor) -> Tensor:
        """Return [rows, tokens, channels * patch]."""
        shift, scale = (self.scale_shift_table + times[:, None].float()).chunk(2, dim=1)
        return self.proj_out((self.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden))


class TowerBlock(WanTransformerBlock):
    """A block of Wan's whose second attention sees a text, and with the same queries the other."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__(
            sizes.size,
            sizes.inner_size,
            sizes.size // sizes.head_size,
            cross_attn_norm=True,
            eps=EPS,
        )
        self.pre_attn_norm_fusion = FP32LayerNorm(sizes.size, EPS)
        self.k_fusion = nn.Linear(sizes.size, sizes.size)
        self.v_fusion = nn.Linear(sizes.size, sizes.size)
        self.norm_k_fusion = nn.RMSNorm(sizes.size, EPS)

    def modulation(self, modulations: Tensor) -> tuple[Tensor, ...]:
        """Return shift, scale and gate of attention, then those of the last layers."""
        return (self.scale_shift_table + modulations.float()).chunk(6, dim=1)

    def attended(self, hidden: Tensor, modulation: tuple[Tensor, ...], own: Rotation) -> Tensor:
        """Return tokens [rows, tokens, size] that have seen each other."""
        shift, scale, gate, *_ = modulation
        normed = (self.norm1(hidden.float()) * (1 + scale) + shift).type_as(hidden)
        seen = self.attn1(normed, None, None, own)
        return (hidden.float() + seen * gate).type_as(hidden)

    def joined(
        self,
        hidden: Tensor,
        modulation: tuple[Tensor, ...],
        own: Rotation,
        text: Tensor,
        other: Tensor,
        others: Rotation,
    ) -> Tensor:
        """Return tokens that have seen a text and the other's tokens; `others`: their rotation."""
        *_, shift, scale, gate = modulation
        normed = self.norm2(hidden.float()).type_as(hidden)
        hidden = hidden + self._seen(normed, own, text, self.pre_attn_norm_fusion(other), others)
        normed = (self.norm3(hidden.float()) * (1 + scale) + shift).type_as(hidden)
        return (hidden.float() + self.ffn(normed).float() * gate).type_as(hidden)

    def _seen(
        self, hidden: Tensor, own: Rotation, text: Tensor, other: Tensor, others: Rotation
    ) -> Tensor:
        layers = self.attn2
        query, key, value, other_key, other_value = (
            one.unflatten(2, (layers.heads, -1))
            for one in (
                layers.norm_q(layers.to_q(hidden)),
                layers.norm_k(layers.to_k(text)),
                layers.to_v(text),
                self.norm_k_fusion(self.k_fusion(other)),
                self.v_fusion(other),
            )
        )
        backend = layers.processor._attention_backend
        seen = dispatch_attention_fn(query, key, value, backend=backend)
        seen = seen + dispatch_attention_fn(
            rotated(query, own), rotated(other_key, others), other_value, backend=backend
        )
        return layers.to_out[0](seen.flatten(2))


def rotated(tokens: Tensor, rotation: Rotation) -> Tensor:
    """Return tokens [rows, tokens, heads, size] with each two numbers rotated."""
    even, odd = tokens.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = (one[..., ::2] for one in rotation)
    pairs = even * cosine - odd * sine, even * sine + odd * cosine
    return torch.stack(pairs, dim=-1).flatten(-2).type_as(tokens)


@dataclass(frozen=True)
class TowerInput:
    """The inputs that all blocks get of a video or of its audio."""

    modulations: Tensor
    rotation: Rotation
    text: Tensor


class FusionBlock(nn.Module):
    """A block of both transformers."""

    def __init__(self, video: TowerSizes, audio: TowerSizes) -> None:
        super().__init__()
        self.video = TowerBlock(video)
        self.audio = TowerBlock(audio)

    def forward(
        self, video: Tensor, audio: Tensor, of_video: TowerInput, of_audio: TowerInput
    ) -> tuple[Tensor, Tensor]:
        """Return tokens of both [rows, tokens, size]."""
        shown, heard = (
            block.modulation(one.modulations)
            for block, one in ((self.video, of_video), (self.audio, of_audio))
        )
        video = self.video.attended(video, shown, of_video.rotation)
        audio = self.audio.attended(audio, heard, of_audio.rotation)
        return (
            self.video.joined(
                video, shown, of_video.rotation, of_video.text, audio, of_audio.rotation
            ),
            self.audio.joined(
                audio, heard, of_audio.rotation, of_audio.text, video, of_video.rotation
            ),
        )


class GatedConvolutions(nn.Module):
    """A gated layer over neighbours."""

    def __init__(self, size: int) -> None:
        super().__init__()
        inner = -(-int(2 * 4 * size / 3) // MULTIPLE) * MULTIPLE
        self.w1, self.w3 = (_convolution(size, inner, has_bias=False) for _ in range(2))
        self.w2 = _convolution(inner, size, has_bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, size, tokens] of the same."""
        return self.w2(nn.functional.silu(self.w1(hidden)) * self.w3(hidden))


def _convolution(channels: int, made: int, has_bias: bool) -> nn.Conv1d:
    return nn.Conv1d(channels, made, WINDOW, padding=WINDOW // 2, bias=has_bias)


class FusionTransformer(ModelMixin):
    """Both transformers."""

    _repeated_blocks: ClassVar = ["FusionBlock"]
    _no_split_modules: ClassVar = ["FusionBlock"]

    def __init__(self, video: TowerSizes, audio: TowerSizes) -> None:
        super().__init__()
        patches = nn.Conv3d(video.channels, video.size, PATCH, PATCH)
        self.video = Tower(video, patches, math.prod(PATCH))
        first = _convolution(audio.channels, audio.size, has_bias=True)
        self.audio = Tower(audio, nn.Sequential(first, nn.SiLU(), GatedConvolutions(audio.size)), 1)
        self.head_size = video.head_size
        self.blocks = nn.ModuleList(FusionBlock(video, audio) for _ in range(video.num_layers))

    def forward(
        self,
        video: Tensor,
        audio: Tensor,
        timestep: Tensor,
        video_text: Tensor,
        audio_text: Tensor,
        num_faces: int,
        voice_lengths: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:
        """Return velocities of video and audio, of their shapes.

        `video`: [rows, channels, latents, height, width], the last `num_faces` latents are those
        of faces; `audio`: [rows, latents, channels], the last ones are voices of `voice_lengths`;
        `timestep`: [rows], 0..1000; `video_text`, `audio_text`: [rows, tokens, text size].
        """
        patches = self.video.patch_embedding(video)
        grid = patches.shape[2:]
        shown = patches.flatten(2).transpose(1, 2)
        heard = self.audio.patch_embedding(audio.transpose(1, 2)).transpose(1, 2)
        ratio = (grid[0] - num_faces) / (audio.shape[1] - sum(voice_lengths))
        scaling = torch.tensor(ratio, dtype=self.dtype)
        rotations = (
            video_rotation(grid, num_faces, self.head_size, video.device),
            audio_rotation(audio.shape[1], voice_lengths, scaling, self.head_size, video.device),
        )
        video_times, modulations, text = self.video.conditions(timestep, video_text)
        of_video = TowerInput(modulations, rotations[0], text)
        audio_times, modulations, text = self.audio.conditions(timestep, audio_text)
        of_audio = TowerInput(modulations, rotations[1], text)
        for block in self.blocks:
            shown, heard = block(shown, heard, of_video, of_audio)
        made = self.video.velocity(shown, video_times)
        made = made.unflatten(1, grid).unflatten(-1, (*PATCH, -1))
        made = made.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return made.reshape(video.shape), self.audio.velocity(heard, audio_times)
