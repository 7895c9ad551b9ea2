"""MMAudio's VAE of audio at 16 kHz: latents of log-mel spectra.

Its layers keep the size of what goes through them. Published weights are those of training: the
reader norms them once (`checkpoint/audio_weights.py`).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from diffusers import ModelMixin
from torch import Tensor, nn
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank

RATE_HZ, FFT_SIZE, HOP, NUM_MELS = 16_000, 1024, 256, 80
SCALES = (1, 2, 4)  # channels of the levels
HALVED = 0  # the level after which there are half as many
NUM_BLOCKS = 2  # of a level of the encoder; the decoder has one more
LEAST_MEL = 1e-5
LARGEST = 256.0  # what a block makes
SILU_SIZE = 0.596  # of what SiLU makes of noise
KEPT = 0.3  # the part of a block's result that is new
EPS = 1e-4


class MelSpectrum(nn.Module):
    """Decimal logarithms of mel spectra."""

    filters: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        filters = mel_filter_bank(
            FFT_SIZE // 2 + 1, NUM_MELS, 0, RATE_HZ / 2, RATE_HZ, norm="slaney", mel_scale="slaney"
        )
        self.register_buffer("filters", torch.from_numpy(filters.T).float(), persistent=False)
        self.register_buffer("window", torch.hann_window(FFT_SIZE), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Return float32 [rows, NUM_MELS, frames] of float32 samples [rows, n]."""
        edge = (FFT_SIZE - HOP) // 2
        samples = functional.pad(samples.clamp(-1, 1)[:, None], (edge, edge), "reflect")[:, 0]
        spectrum = torch.stft(
            samples,
            FFT_SIZE,
            HOP,
            window=self.window.float(),
            center=False,
            return_complex=True,
        )
        sizes = torch.sqrt(spectrum.real.square() + spectrum.imag.square() + 1e-9)
        return torch.log10((self.filters.float() @ sizes).clamp(min=LEAST_MEL))


class AudioVaeBlock(nn.Module):
    """A residual block."""

    def __init__(self, channels: int, made: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels, made)
        self.conv2 = convolution(made, made)
        self.nin_shortcut = convolution(channels, made, 1) if channels != made else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, made, n]."""
        hidden = normed(hidden)
        new = self.conv2(activated(self.conv1(activated(hidden))))
        return mixed(self.nin_shortcut(hidden), new)


class AudioVaeAttention(nn.Module):
    """Attention of one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv = convolution(channels, 3 * channels, 1)
        self.proj_out = convolution(channels, channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, channels, n] of the same."""
        parts = normed(self.qkv(hidden).unflatten(1, (-1, 3)))
        query, key, value = (one.transpose(1, 2)[:, None] for one in parts.unbind(2))
        seen = functional.scaled_dot_product_attention(query, key, value)
        return mixed(hidden, self.proj_out(seen[:, 0].transpose(1, 2)))


class HalvingLayer(nn.Module):
    """Makes one of two."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (convolution(channels, channels, 1) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, channels, n / 2]."""
        return self.conv2(functional.avg_pool1d(self.conv1(hidden), 2))


class DoublingLayer(nn.Module):
    """Makes two of one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = convolution(channels, channels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, channels, 2 n]."""
        return self.conv(hidden.repeat_interleave(2, dim=2))


class AudioVaeMiddle(nn.Module):
    """The blocks between encoder and latents, and between latents and decoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = (AudioVaeBlock(channels, channels) for _ in range(2))
        self.attn_1 = AudioVaeAttention(channels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, channels, n] of the same."""
        return bounded(self.block_2(self.attn_1(self.block_1(hidden))))


class AudioVaeLevel(nn.Module):
    """Blocks of one number of channels, and what follows them."""

    def __init__(self, channels: int, made: int, num_blocks: int) -> None:
        super().__init__()
        sizes = [channels, *[made] * num_blocks]
        self.block = nn.ModuleList(AudioVaeBlock(one, other) for one, other in pairwise(sizes))
        self.downsample: nn.Module = nn.Identity()
        self.upsample: nn.Module = nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [rows, made, n or half or twice that]."""
        for block in self.block:
            hidden = bounded(block(hidden))
        return self.upsample(self.downsample(hidden))


class AudioVaeEncoder(nn.Module):
    """Means and variances of latents, of mel spectra."""

    def __init__(self, size: int, num_latents: int) -> None:
        super().__init__()
        channels = [size * one for one in (1, *SCALES)]
        self.conv_in = convolution(NUM_MELS, size)
        self.down = nn.ModuleList(
            AudioVaeLevel(one, other, NUM_BLOCKS) for one, other in pairwise(channels)
        )
        self.down[HALVED].downsample = HalvingLayer(channels[HALVED + 1])
        self.mid = AudioVaeMiddle(channels[-1])
        self.conv_out = convolution(channels[-1], 2 * num_latents)

    def forward(self, mels: Tensor) -> Tensor:
        """Return [rows, 2 * num_latents, frames / 2]."""
        return self.conv_out(activated(self.mid(run(self.down, self.conv_in(mels)))))


class AudioVaeDecoder(nn.Module):
    """Mel spectra of latents."""

    def __init__(self, size: int, num_latents: int) -> None:
        super().__init__()
        channels = [size * one for one in (*SCALES, SCALES[-1])]
        self.conv_in = convolution(num_latents, channels[-1])
        self.mid = AudioVaeMiddle(channels[-1])
        self.up = nn.ModuleList(
            AudioVaeLevel(other, one, NUM_BLOCKS + 1) for one, other in pairwise(channels)
        )
        self.up[HALVED + 1].upsample = DoublingLayer(channels[HALVED + 1])
        self.conv_out = convolution(channels[0], NUM_MELS)

    def forward(self, latents: Tensor) -> Tensor:
        """Return [rows, NUM_MELS, 2 n]."""
        hidden = run(list(self.up)[::-1], self.mid(self.conv_in(latents)))
        return self.conv_out(activated(hidden))


class AudioVae(ModelMixin):
    """Encoder and decoder of log-mel spectra, which are moved to be near 0 and of size 1."""

    data_mean: Tensor
    data_std: Tensor

    def __init__(self, size: int, num_latents: int) -> None:
        super().__init__()
        self.mel = MelSpectrum()
        self.encoder = AudioVaeEncoder(size, num_latents)
        self.decoder = AudioVaeDecoder(size, num_latents)
        for name in ("data_mean", "data_std"):
            self.register_buffer(name, torch.zeros(1, NUM_MELS, 1))

    def encode(self, samples: Tensor) -> Tensor:
        """Return latents [rows, num_latents, n] of float32 samples [rows, 2 * HOP * n or more]."""
        mels = (self.mel(samples) - self.data_mean.float()) / self.data_std.float()
        return self.encoder(mels.to(self.dtype)).chunk(2, dim=1)[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Return log-mel spectra [rows, NUM_MELS, 2 n] of latents [rows, num_latents, n]."""
        return self.decoder(latents) * self.data_std + self.data_mean


def convolution(channels: int, made: int, width: int = 3) -> nn.Conv1d:
    """Return a layer that keeps lengths."""
    return nn.Conv1d(channels, made, width, padding=width // 2, bias=False)


def run(layers: Sequence[nn.Module] | nn.ModuleList, hidden: Tensor) -> Tensor:
    """Return what layers make one after another."""
    for layer in layers:
        hidden = layer(hidden)
    return hidden


def activated(hidden: Tensor) -> Tensor:
    """Return SiLU, of size 1 for noise."""
    return functional.silu(hidden) / SILU_SIZE


def normed(hidden: Tensor) -> Tensor:
    """Return channels [rows, channels, ...] of size 1 together."""
    sizes = torch.linalg.vector_norm(hidden, dim=1, keepdim=True, dtype=torch.float32)
    return hidden / (EPS + sizes / math.sqrt(hidden.shape[1])).to(hidden.dtype)


def mixed(old: Tensor, new: Tensor) -> Tensor:
    """Return both together, of the size that each has."""
    return old.lerp(new, KEPT) / math.hypot(1 - KEPT, KEPT)


def bounded(hidden: Tensor) -> Tensor:
    """Return numbers within what half precision holds."""
    return hidden.clamp(-LARGEST, LARGEST)
