"""VoxCPM2's audio VAE as modules: causal convolutions from sound to latents, and back.

Names are those of a checkpoint, whose normalized weights are plain ones here (`vae_weights.py`).
`vocoder.py` runs the decoder piece by piece; the encoder runs whole sounds.
"""

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from omnistage.stages.voxcpm2.settings import AudioVaeConfig

KERNEL_SIZE = 7
DILATIONS = (1, 3, 9)
LATENT_KERNEL_SIZE = 3
EPSILON = 1e-9


class VaeSnake(nn.Module):
    """x + sin²(alpha · x) / alpha."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Elementwise, of [B, channels, n]."""
        wave = (hidden * self.alpha).sin().square()
        return torch.addcmul(hidden, wave, (self.alpha + EPSILON).reciprocal())


class CausalConv(nn.Conv1d):
    """A convolution that sees `num_past` inputs behind the current one, zeros before the first."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dilation=dilation, groups=groups)
        self.num_past = stride if stride > 1 else (kernel - 1) * dilation

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From [B, inputs, n] to [B, outputs, n / stride]."""
        return super().forward(functional.pad(hidden, (self.num_past, 0)))


class Residual(nn.Module):
    """A convolution with gaps, and one of a single step, on top of the input."""

    def __init__(self, channels: int, dilation: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            VaeSnake(channels),
            CausalConv(channels, channels, KERNEL_SIZE, dilation=dilation, groups=groups),
            VaeSnake(channels),
            CausalConv(channels, channels, 1),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From [B, channels, n] to the same shape."""
        output: torch.Tensor = hidden + self.block(hidden)
        return output


class EncoderBlock(nn.Module):
    """Residuals, and a convolution with a stride."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(Residual(inputs, dilation, groups) for dilation in DILATIONS),
            VaeSnake(inputs),
            CausalConv(inputs, outputs, 2 * stride, stride=stride),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From [B, inputs, n] to [B, outputs, n / stride]."""
        output: torch.Tensor = self.block(hidden)
        return output


class VaeEncoder(nn.Module):
    """Sound in, the means of latents out."""

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        size = config.encoder_dim
        layers: list[nn.Module] = [CausalConv(1, size, KERNEL_SIZE)]
        for stride in config.encoder_rates:
            groups = size if config.depthwise else 1
            layers.append(EncoderBlock(size, 2 * size, stride, groups))
            size *= 2
        self.block = nn.Sequential(*layers)
        self.fc_mu = CausalConv(size, config.latent_dim, LATENT_KERNEL_SIZE)
        self.samples_per_latent = math.prod(config.encoder_rates)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """From samples [B, n] of a whole number of latents to means [B, latent, n / samples]."""
        output: torch.Tensor = self.fc_mu(self.block(sound[:, None]))
        return output


class VaeBlock(nn.Module):
    """A transposed convolution, and residuals; the parts stand in the order of `block`."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            VaeSnake(inputs),
            nn.ConvTranspose1d(inputs, outputs, 2 * stride, stride),
            *(Residual(outputs, dilation, groups) for dilation in DILATIONS),
        )


class RateCondition(nn.Module):
    """A scale and an offset for each channel, by the bucket of the sound's rate."""

    def __init__(self, channels: int, num_buckets: int) -> None:
        super().__init__()
        self.scale_embed = nn.Embedding(num_buckets, channels)
        self.bias_embed = nn.Embedding(num_buckets, channels)


class VaeDecoder(nn.Module):
    """The parts of a checkpoint's decoder, in the order in which they are run."""

    def __init__(self, config: AudioVaeConfig, patch_size: int) -> None:
        super().__init__()
        self.config, self.patch_size = config, patch_size
        size, latent = config.decoder_dim, config.latent_dim
        layers: list[nn.Module] = []
        if config.depthwise:
            layers += [CausalConv(latent, latent, KERNEL_SIZE, groups=latent)]
            layers += [CausalConv(latent, size, 1)]
        else:
            layers += [CausalConv(latent, size, KERNEL_SIZE)]
        self.num_heads = len(layers)
        conditions: list[nn.Module | None] = [None] * len(layers)
        for stride in config.decoder_rates:
            groups = size // 2 if config.depthwise else 1
            layers.append(VaeBlock(size, size // 2, stride, groups))
            if config.sr_bin_boundaries is not None:
                conditions.append(RateCondition(size, len(config.sr_bin_boundaries) + 1))
            size //= 2
        layers += [VaeSnake(size), CausalConv(size, 1, KERNEL_SIZE)]
        self.model = nn.ModuleList(layers)
        self.sr_cond_model = nn.ModuleDict(
            {str(place): one for place, one in enumerate(conditions) if one is not None}
        )

    @property
    def heads(self) -> Iterator[CausalConv]:
        """The convolutions before the blocks."""
        for layer in self.model[: self.num_heads]:
            assert isinstance(layer, CausalConv)
            yield layer

    @property
    def blocks(self) -> Iterator[tuple[VaeBlock, RateCondition | None]]:
        """The blocks, each with its condition."""
        for place, layer in enumerate(self.model):
            if isinstance(layer, VaeBlock):
                key = str(place)
                found = dict(self.sr_cond_model.items()).get(key)
                assert found is None or isinstance(found, RateCondition)
                yield layer, found
