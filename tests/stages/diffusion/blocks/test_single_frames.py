"""The VAE's convolutions of one frame beside Diffusers' own."""

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch.utils.flop_counter import FlopCounterMode

from omnistage.stages.diffusion.blocks.single_frames import flatten_single_frames


def make_vae() -> Any:
    torch.manual_seed(0)
    return AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1,
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    ).eval()  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("num_frames", [1, 5])
def test_pictures_and_videos_are_decoded_and_encoded_as_before(num_frames: int) -> None:
    plain, flat = make_vae(), make_vae()
    flatten_single_frames(flat)
    pixels = torch.rand(2, 3, num_frames, 32, 40) * 2 - 1
    latents = plain.encode(pixels).latent_dist.mode()
    torch.testing.assert_close(flat.encode(pixels).latent_dist.mode(), latents)
    expected = plain.decode(latents).sample
    assert expected.shape == pixels.shape
    torch.testing.assert_close(flat.decode(latents).sample, expected)
    assert flat.state_dict().keys() == plain.state_dict().keys()


@torch.inference_mode()
def test_a_picture_takes_less_than_half_of_the_arithmetic() -> None:
    latents = torch.randn(1, 4, 1, 4, 4)
    counted = []
    for is_flat in (False, True):
        vae = make_vae()
        if is_flat:
            flatten_single_frames(vae)
        with FlopCounterMode(display=False) as counter:
            vae.decode(latents)
        counted.append(counter.get_total_flops())
    assert counted[1] < counted[0] / 2


@torch.inference_mode()
@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        (1, {}),
        (3, {"padding": 1}),
        ((3, 1, 1), {"padding": (1, 0, 0)}),
        ((3, 1, 1), {"padding": (1, 0, 0), "stride": (2, 1, 1)}),
        (3, {"padding": (1, 0, 2), "stride": (1, 2, 1)}),
        ((1, 3, 3), {"padding": (0, 1, 1)}),
    ],
)
def test_a_convolution_of_any_kind_is_the_same(kernel: Any, more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    conv = QwenImageCausalConv3d(3, 4, kernel, **more).eval()
    frame, before = torch.randn(2, 3, 1, 6, 7), torch.randn(2, 3, 2, 6, 7)
    expected = conv(frame)
    given_before = conv(frame, before)
    flatten_single_frames(torch.nn.ModuleList([conv]))
    torch.testing.assert_close(conv(frame), expected)
    torch.testing.assert_close(conv(frame, before), given_before)
