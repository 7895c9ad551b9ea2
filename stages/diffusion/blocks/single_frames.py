"""Causal convolutions of Qwen-Image's VAE, which is a video's, where there is one frame.

The frames before the first one are zeros, so of a kernel in time only the last part counts.
"""

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import Tensor, nn
from torch.nn.functional import conv2d


class SingleFrameConv3d(QwenImageCausalConv3d):
    """A convolution of one frame with none before it: in two dimensions, a third of the work.

    The same sums but for their order. Of more frames it is Diffusers' own.
    """

    def forward(self, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        """[B, channels, frames, height, width]; `cache_x`: the frames before, if there are any."""
        width, _, height, _, before, _ = self._padding
        is_single = x.shape[2] == 1 and cache_x is None
        if not is_single or self.stride[0] != 1 or before != self.kernel_size[0] - 1:
            made: Tensor = super().forward(x, cache_x)
            return made
        last = self.weight[:, :, -1].contiguous()
        return conv2d(x[:, :, 0], last, self.bias, self.stride[1:], (height, width))[:, :, None]


def flatten_single_frames(vae: nn.Module) -> None:
    """Let a VAE decode and encode pictures so; its weights stay where they are."""
    for module in vae.modules():
        if type(module) is QwenImageCausalConv3d:
            as_any: object = module
            as_any.__class__ = SingleFrameConv3d
