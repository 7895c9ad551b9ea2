"""BigVGAN, which makes samples of mel frames, in windows of some frames.

Each sample depends on 34 frames to either side, most of it on far fewer. Windows of several
requests share a batch if they are as long as each other; on a CPU each is decoded alone, so that
its samples are the same beside any others.

In half precision on a GPU the layers are fused kernels, and their products are float16 in any
case. Of real size with random weights the samples are then as far from float32's as with the TF32
that torch gives float32 (relative RMS 2e-3 to 5e-3 against 1e-3 to 4e-3); with bfloat16 they were
eight times as far.
"""

from collections.abc import Callable, Set
from math import prod
from typing import Any

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavModel,
)

from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_graphs import WindowGraphs
from omnistage.stages.vocoder.layers.products import takes_fused_kernels

REACH = 34  # frames to either side on which a sample depends at all
HALF = torch.float16  # what the products are of if they need not be of float32


class WindowVocoder:
    """`model`'s weights are used and not copied; those of fused layers become `HALF` in it.

    `is_half`: the layers may be fused, where they can be.
    """

    def __init__(self, model: Qwen2_5OmniToken2WavBigVGANModel, *, is_half: bool = False) -> None:
        self._net: Any = model
        self._fused: Callable[[torch.Tensor], torch.Tensor] | None = None
        if is_half and self._net.device.type == "cuda":
            from omnistage.stages.qwen2_5_omni.token2wav.bigvgan_fused import (
                FusedBigVGAN,
                is_fusible,
            )

            if is_fusible(model):
                self._fused = FusedBigVGAN(model, HALF)
        self._graphs = WindowGraphs()
        self.samples_per_frame: int = prod(self._net.config.upsample_rates)

    @classmethod
    def of(cls, model: Qwen2_5OmniToken2WavModel) -> "WindowVocoder":
        """Makes it in half precision if the layers of the model's DiT are."""
        net: Any = model
        layer = net.code2wav_dit_model.transformer_blocks[0]
        is_half = takes_fused_kernels(next(layer.attn.parameters()))
        return cls(net.code2wav_bigvgan_model, is_half=is_half)

    def capture(self, lengths: Set[int]) -> None:
        """Record fused layers for windows of so many frames, so that they are launched at once."""
        if self._fused is not None:
            self._graphs.record(self._fused, lengths, self._net.config.mel_dim, self._net.device)

    def __call__(self, mel: torch.Tensor) -> torch.Tensor:
        """The samples of mel frames [windows, frames, mel]: float32 [windows, samples]."""
        if mel.device.type == "cpu":
            return torch.cat([self._decode(one[None]) for one in mel]).float()
        if self._fused is None:
            return self._decode(mel).float()
        recorded = self._graphs.decode(mel)
        return self._fused(mel) if recorded is None else recorded

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
