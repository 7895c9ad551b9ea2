"""Tiny pipelines that take media, one of each way in which they are given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import (
    FluxFillPipeline,
    FluxTransformer2DModel,
    HunyuanVideo15ImageToVideoPipeline,
    QwenImageControlNetModel,
    QwenImageControlNetPipeline,
    WanImageToVideoPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from PIL import Image
from support.tiny_pipelines.build import build
from support.tiny_pipelines.qwen_images import make_edit_plus, make_layered

from omnistage.stages.diffusion.checkpoint import make_tiny

LATENT, PACKED = 4, 16
Pixels = npt.NDArray[np.uint8]


def picture(seed: int, width: int = 48, height: int = 32) -> Pixels:
    """Return an image of noise."""
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def video(num_frames: int, width: int = 32, height: int = 32) -> Pixels:
    """Return a video of noise."""
    shape = (num_frames, height, width, 3)
    return np.random.default_rng(0).integers(0, 255, shape, np.uint8)


def mask(width: int = 48, height: int = 32) -> Pixels:
    """Return a mask of the left half."""
    made = np.zeros((height, width), np.uint8)
    made[:, : width // 2] = 255
    return made


def _wan(made: Any, transformer: Any, **more: Any) -> Any:
    parts = make_tiny("wan").components
    return made(**{**parts, "transformer": transformer, "transformer_2": None, **more})


def _wan_sizes(num_in: int) -> dict[str, Any]:
    config = make_tiny("wan").transformer.config
    names = ("num_attention_heads", "attention_head_dim", "text_dim", "freq_dim", "ffn_dim")
    sizes = {name: config[name] for name in (*names, "num_layers", "rope_max_seq_len")}
    return {**sizes, "in_channels": num_in, "out_channels": LATENT}


def make_wan_of_pictures() -> WanImageToVideoPipeline:
    """Wan 2.2's, with both of its denoisers."""
    first, second = (WanTransformer3DModel(**_wan_sizes(3 * LATENT)).eval() for _ in range(2))
    parts = {"image_encoder": None, "image_processor": None, "boundary_ratio": 0.9}
    made = _wan(WanImageToVideoPipeline, first, **parts)
    made.register_modules(transformer_2=second)
    return made


def make_vace() -> WanVACEPipeline:
    """Wan's for videos with masks and references."""
    sizes = {**_wan_sizes(LATENT), "vace_layers": [0], "vace_in_channels": 2 * LATENT + 64}
    return _wan(WanVACEPipeline, WanVACETransformer3DModel(**sizes).eval())


def make_hunyuan_of_pictures() -> HunyuanVideo15ImageToVideoPipeline:
    """HunyuanVideo 1.5's; its videos are of 32 x 32."""
    return build(HunyuanVideo15ImageToVideoPipeline)


def make_flux_fill() -> FluxFillPipeline:
    """Flux whose denoiser reads the masked picture and its mask."""
    parts = make_tiny("flux").components
    sizes = {"in_channels": 3 * PACKED, "out_channels": PACKED}
    transformer = FluxTransformer2DModel.from_config(parts["transformer"].config, **sizes).eval()
    names = ("scheduler", "vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    return FluxFillPipeline(**{name: parts[name] for name in names}, transformer=transformer)


def make_controlled() -> QwenImageControlNetPipeline:
    """Qwen-Image with a ControlNet."""
    parts = make_tiny("qwen-image").components
    config = dict(parts["transformer"].config)
    controlnet = QwenImageControlNetModel.from_config(config, num_layers=1).eval()
    for layer in (*controlnet.controlnet_blocks, controlnet.controlnet_x_embedder):
        torch.nn.init.normal_(layer.weight, std=0.2)  # a new one is of zeros
    return QwenImageControlNetPipeline(**parts, controlnet=controlnet)


@dataclass(frozen=True)
class Given:
    """Media of a request, and the arguments of the bare call that they are.

    `body`: fields of the request that are arguments of the same names.
    """

    make: Callable[[], Any]
    media: Mapping[str, list[Pixels]]
    arguments: Mapping[str, Any]
    body: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the pipeline's folder; the same each time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.make().save_pretrained(folder)


def _pil(*pixels: Pixels) -> list[Image.Image]:
    return [Image.fromarray(one) for one in pixels]


def _with_alpha(pixels: Pixels) -> Pixels:
    return np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])


LAYERED = {"layers": 4, "resolution": 640}
THREE = [picture(1), picture(2, 32, 48), picture(3)]
FIVE = video(5)
GRAY = np.full((32, 32, 3), 128, np.uint8)
VIDEO = {"height": 32, "width": 32, "num_frames": 5, "guidance_scale": 1.0}
PICTURE = {"height": 32, "width": 48}
WIDE = {"height": 32, "width": 64}
GIVEN: Mapping[str, Given] = {
    "wan-i2v": Given(
        make_wan_of_pictures,
        {"image": [picture(1, 32)], "last_image": [picture(2, 32)]},
        {"image": _pil(picture(1, 32))[0], "last_image": _pil(picture(2, 32))[0]},
        {**VIDEO, "num_inference_steps": 4},
    ),
    "vace": Given(
        make_vace,
        {"video": [FIVE], "mask": [mask(32)], "reference_image": [picture(3, 32)]},
        {
            "video": _pil(*FIVE),
            "mask": _pil(mask(32)) * 5,
            "reference_images": _pil(picture(3, 32)),
        },
        VIDEO,
    ),
    "vace-first-and-last": Given(
        make_vace,
        {"image": [picture(1, 32)], "last_image": [picture(2, 32)]},
        {
            "video": [*_pil(picture(1, 32)), *_pil(GRAY) * 3, *_pil(picture(2, 32))],
            "mask": _pil(0 * mask(32), *[0 * mask(32) + 255] * 3, 0 * mask(32)),
        },
        VIDEO,
    ),
    "hunyuan-i2v": Given(
        make_hunyuan_of_pictures,
        {"image": [picture(1, 32)]},
        {"image": _pil(picture(1, 32))[0]},
        {"num_frames": 5},
    ),
    "edit-plus": Given(make_edit_plus, {"image": THREE}, {"image": _pil(*THREE)}, WIDE),
    "flux-fill": Given(
        make_flux_fill,
        {"image": THREE[:1], "mask": [mask()]},
        {"image": _pil(THREE[0])[0], "mask_image": _pil(mask())[0]},
        PICTURE,
    ),
    "layered": Given(
        make_layered, {"image": THREE[:1]}, {"image": _pil(_with_alpha(THREE[0]))[0]}, LAYERED
    ),
    "qwen-controlnet": Given(
        make_controlled,
        {"control_image": THREE[:1]},
        {"control_image": _pil(THREE[0])[0]},
        {**PICTURE, "controlnet_conditioning_scale": 0.5, "control_guidance_end": 0.5},
    ),
}
