"""BigVGAN as MMAudio has it: samples at 16 kHz of log-mel spectra."""

from collections.abc import Sequence

import torch
from diffusers import ModelMixin
from torch import Tensor, nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAMPBlock,
    Qwen2_5OmniAntiAliasedActivation1d,
    Qwen2_5OmniSnakeBeta,
)

WIDTHS, DILATIONS = (3, 7, 11), (1, 3, 5)  # of the blocks of a level, and of their layers
EDGE = 7  # width of the first layer and of the last


class Vocoder(ModelMixin):
    """Levels that each make more samples, in fewer channels."""

    def __init__(self, num_mels: int, channels: int, rates: Sequence[int]) -> None:
        """`rates`: samples that a level makes of one."""
        super().__init__()
        sizes = [channels >> level for level in range(len(rates) + 1)]
        self.conv_pre = nn.Conv1d(num_mels, channels, EDGE, padding=EDGE // 2)
        self.ups = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose1d(one, one // 2, 2 * rate, rate, rate // 2)])
            for one, rate in zip(sizes, rates, strict=False)
        )
        self.resblocks = nn.ModuleList(
            Qwen2_5OmniAMPBlock(one, width, DILATIONS) for one in sizes[1:] for width in WIDTHS
        )
        self.activation_post = Qwen2_5OmniAntiAliasedActivation1d(Qwen2_5OmniSnakeBeta(sizes[-1]))
        self.conv_post = nn.Conv1d(sizes[-1], 1, EDGE, padding=EDGE // 2)

    def forward(self, mels: Tensor) -> Tensor:
        """Return samples [rows, 1, n] from -1 to 1 of mels [rows, num_mels, frames]."""
        hidden = self.conv_pre(mels)
        for level, up in enumerate(self.ups):
            hidden = up.get_submodule("0")(hidden)
            first = level * len(WIDTHS)
            blocks = self.resblocks[first : first + len(WIDTHS)]
            hidden = sum(block(hidden) for block in blocks) / len(WIDTHS)
        return torch.tanh(self.conv_post(self.activation_post(hidden)))
