"""The vector of a voice (x-vector) from a sound: an ECAPA-TDNN on a mel spectrogram.

Its names are those of `speaker_encoder.*` in a checkpoint. It takes one sound at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank

SAMPLE_RATE_HZ = 24_000
NUM_FFT, HOP = 1024, 256
MIN_MAGNITUDE, MIN_MEL, MIN_VARIANCE = 1e-9, 1e-5, 1e-12


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """`speaker_encoder_config` of a checkpoint; the defaults are those of its code.

    `enc_channels` and what is beside it: the first layer, the blocks, and what gathers them.
    """

    mel_dim: int = 128
    enc_dim: int = 1024
    enc_channels: Sequence[int] = field(default=(512, 512, 512, 512, 1536))
    enc_kernel_sizes: Sequence[int] = field(default=(5, 3, 3, 3, 1))
    enc_dilations: Sequence[int] = field(default=(1, 2, 3, 4, 1))
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = SAMPLE_RATE_HZ

    def __post_init__(self) -> None:
        """Raises ValueError for what this code cannot compute."""
        if self.sample_rate != SAMPLE_RATE_HZ:
            raise ValueError(f"a speaker encoder of {self.sample_rate} Hz, not {SAMPLE_RATE_HZ}")
        lengths = {len(self.enc_channels), len(self.enc_kernel_sizes), len(self.enc_dilations)}
        if len(lengths) > 1:
            raise ValueError("a speaker encoder's channels, kernels and dilations differ in number")

    @property
    def min_samples(self) -> int:
        """The shortest sound: no layer may mirror more frames than there are."""
        pairs = zip(self.enc_kernel_sizes, self.enc_dilations, strict=True)
        return HOP * (1 + max((size - 1) * dilation // 2 for size, dilation in pairs))


class SpeakerEncoder(nn.Module):
    """Mel frames [1, n, mel_dim] in, the voice's vector [enc_dim] out."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        first, *inner, last = zip(
            config.enc_channels, config.enc_kernel_sizes, config.enc_dilations, strict=True
        )
        self.blocks = nn.ModuleList([TimeDelay(config.mel_dim, *first)])
        num_before = first[0]
        for num_channels, kernel_size, dilation in inner:
            self.blocks.append(
                SqueezedBlock(config, num_before, num_channels, kernel_size, dilation)
            )
            num_before = num_channels
        self.mfa = TimeDelay(last[0], *last)
        self.asp = AttentivePooling(last[0], config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * last[0], config.enc_dim, 1)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        hidden = mel.transpose(1, 2)
        outputs = []
        for block in self.blocks:
            hidden = block(hidden)
            outputs.append(hidden)
        gathered = self.mfa(torch.cat(outputs[1:], dim=1))
        vector: torch.Tensor = self.fc(self.asp(gathered))
        return vector[0, :, 0]


class TimeDelay(nn.Module):
    """A convolution over frames, which are mirrored at the ends."""

    def __init__(self, num_in: int, num_out: int, kernel_size: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            num_in, num_out, kernel_size, dilation=dilation, padding="same", padding_mode="reflect"
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.conv(hidden))


class SqueezedBlock(nn.Module):
    """Res2Net between two pointwise layers, its channels weighed by what all frames have."""

    def __init__(
        self,
        config: SpeakerEncoderConfig,
        num_in: int,
        num_out: int,
        kernel_size: int,
        dilation: int,
    ) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(num_in, num_out)
        self.res2net_block = Res2Net(num_out, config.enc_res2net_scale, kernel_size, dilation)
        self.tdnn2 = TimeDelay(num_out, num_out)
        self.se_block = SqueezeExcitation(num_out, config.enc_se_channels)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.tdnn2(self.res2net_block(self.tdnn1(hidden)))
        return hidden + self.se_block(branch)


class Res2Net(nn.Module):
    """Groups of channels, each of which but the first two hears the one before too."""

    def __init__(self, num_channels: int, scale: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        width = num_channels // scale
        self.blocks = nn.ModuleList(
            TimeDelay(width, width, kernel_size, dilation) for _ in range(scale - 1)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        first, *groups = torch.chunk(hidden, self.scale, dim=1)
        outputs = [first]
        for number, (block, group) in enumerate(zip(self.blocks, groups, strict=True)):
            outputs.append(block(group if number == 0 else group + outputs[-1]))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    """Weighs channels by their mean over all frames."""

    def __init__(self, num_channels: int, num_squeezed: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(num_channels, num_squeezed, 1)
        self.conv2 = nn.Conv1d(num_squeezed, num_channels, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        squeezed = functional.relu(self.conv1(hidden.mean(dim=2, keepdim=True)))
        return hidden * torch.sigmoid(self.conv2(squeezed))


class AttentivePooling(nn.Module):
    """Mean and deviation of each channel over the frames, by weights that it learns."""

    def __init__(self, num_channels: int, num_attention: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * num_channels, num_attention)
        self.conv = nn.Conv1d(num_attention, num_channels, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Pools [1, channels, n] to [1, 2 * channels, 1]."""
        even = torch.full_like(hidden[:, :1], 1 / hidden.shape[-1])
        whole = [one.expand_as(hidden) for one in _statistics(hidden, even)]
        scores = self.conv(torch.tanh(self.tdnn(torch.cat([hidden, *whole], dim=1))))
        return torch.cat(_statistics(hidden, functional.softmax(scores, dim=2)), dim=1)


def _statistics(hidden: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    mean = (weights * hidden).sum(2, keepdim=True)
    variance = (weights * (hidden - mean).square()).sum(2, keepdim=True)
    return [mean, variance.clamp(min=MIN_VARIANCE).sqrt()]


def mel_frames(sound: torch.Tensor, num_mels: int) -> torch.Tensor:
    """The logarithmic mel spectrogram of mono samples [n] at 24 kHz: [1, frames, num_mels]."""
    margin = (NUM_FFT - HOP) // 2
    padded = functional.pad(sound[None], (margin, margin), mode="reflect")
    window = torch.hann_window(NUM_FFT, device=sound.device)
    spectrum = torch.stft(
        padded, NUM_FFT, HOP, NUM_FFT, window=window, center=False, return_complex=True
    )
    power = torch.view_as_real(spectrum).square().sum(-1)
    magnitude = (power + MIN_MAGNITUDE).sqrt()
    mel = _filters(num_mels).to(sound.device) @ magnitude
    return mel.clamp(min=MIN_MEL).log().transpose(1, 2)


def _filters(num_mels: int) -> torch.Tensor:
    """Triangles on Slaney's scale, each of the same area: [num_mels, frequencies]."""
    filters = mel_filter_bank(
        num_frequency_bins=NUM_FFT // 2 + 1,
        num_mel_filters=num_mels,
        min_frequency=0.0,
        max_frequency=SAMPLE_RATE_HZ / 2,
        sampling_rate=SAMPLE_RATE_HZ,
        norm="slaney",
        mel_scale="slaney",
    )
    return torch.from_numpy(filters.T).float()
