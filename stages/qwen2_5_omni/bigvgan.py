"""BigVGAN, which makes samples of mel frames, in windows of some frames.

Each sample depends on 34 frames to either side, most of it on far fewer. Windows of several
requests share a batch if they are as long as each other; on a CPU each is decoded alone, so that
its samples are the same beside any others.
"""

from math import prod
from typing import Any

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavBigVGANModel

REACH = 34  # frames to either side on which a sample depends at all


class WindowVocoder:
    """`model`'s weights are used and not copied."""

    def __init__(self, model: Qwen2_5OmniToken2WavBigVGANModel) -> None:
        self._net: Any = model
        self.samples_per_frame: int = prod(self._net.config.upsample_rates)

    def __call__(self, mel: torch.Tensor) -> torch.Tensor:
        """The samples of mel frames [windows, frames, mel]: float32 [windows, samples]."""
        if mel.device.type == "cpu":
            return torch.cat([self._decode(one[None]) for one in mel]).float()
        return self._decode(mel).float()

    def _decode(self, mel: torch.Tensor) -> torch.Tensor:
        net = self._net
        hidden = net.conv_pre(net.process_mel_spectrogram(mel.mT))
        for number, (upsample,) in enumerate(net.ups):
            hidden = upsample(hidden)
            size = net.num_residual_blocks
            blocks = net.resblocks[number * size : (number + 1) * size]
            hidden = sum(block(hidden) for block in blocks) / size
        samples: torch.Tensor = net.conv_post(net.activation_post(hidden))
        return samples[:, 0].clamp(-1, 1)
