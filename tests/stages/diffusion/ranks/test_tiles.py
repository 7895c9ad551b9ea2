"""Tiles of VAEs that are computed elsewhere make the picture that one process makes of tiles."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import diffusers
import pytest
import torch

from omnistage.stages.diffusion.loading.components import has_tiles
from omnistage.stages.diffusion.merging.stopping import Cancellation, Stopped, stoppable
from omnistage.stages.diffusion.ranks.tiles import (
    CLASSES,
    SharedTiles,
    Tile,
    check_tiles,
    decoded,
)
from omnistage.stages.diffusion.ranks.wire import as_bytes, from_bytes, pack, unpack

BLOCKS_2D = {
    "block_out_channels": (8, 8),
    "norm_num_groups": 4,
    "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "sample_size": 16,
}
CAUSAL = {
    "base_dim": 8,
    "z_dim": 4,
    "num_res_blocks": 1,
    "dim_mult": [1, 1],
    "temperal_downsample": [True],
    "latents_mean": [0.0] * 4,
    "latents_std": [1.0] * 4,
}
SMALL = {  # in latents
    "tile_sample_min_height": 4,
    "tile_sample_min_width": 4,
    "tile_sample_stride_height": 3,
    "tile_sample_stride_width": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "AutoencoderDC": {
        "latent_channels": 4,
        "attention_head_dim": 2,
        "encoder_block_types": ("ResBlock",) * 2,
        "decoder_block_types": ("ResBlock",) * 2,
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "encoder_qkv_multiscales": ((), ()),
        "decoder_qkv_multiscales": ((), ()),
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "decoder_norm_types": "rms_norm",
        "decoder_act_fns": "silu",
    },
    "AutoencoderKL": BLOCKS_2D,
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (8, 8, 8, 8),
        "down_block_types": ("CogVideoXDownBlock3D",) * 4,
        "up_block_types": ("CogVideoXUpBlock3D",) * 4,
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "sample_height": 64,
        "sample_width": 64,
    },
    "AutoencoderKLFlux2": BLOCKS_2D,
    "AutoencoderKLHunyuanVideo": {
        "latent_channels": 4,
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "norm_num_groups": 4,
    },
    "AutoencoderKLMochi": {
        "latent_channels": 4,
        "encoder_block_out_channels": (32, 32, 32, 32),
        "decoder_block_out_channels": (32, 32, 32, 32),
        "layers_per_block": (1, 1, 1, 1, 1),
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    },
    "AutoencoderKLQwenImage": CAUSAL,
    "AutoencoderKLWan": {**CAUSAL, "scale_factor_spatial": 2, "scale_factor_temporal": 2},
}
NUM_FRAMES = {
    "AutoencoderKLCogVideoX": 5,
    "AutoencoderKLHunyuanVideo": 2,
    "AutoencoderKLMochi": 2,
    "AutoencoderKLQwenImage": 1,
    "AutoencoderKLWan": 3,
}

LARGE = ("AutoencoderKL", "AutoencoderKLFlux2")  # their tiles have sides of 8


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Faster for modules as small as these."""
    torch.set_num_threads(1)


def made(name: str, config: Mapping[str, Any] | None = None) -> Any:
    """A tiny one with small tiles."""
    torch.manual_seed(0)
    vae = getattr(diffusers, name)(**(config or CONFIGS[name])).eval()
    if hasattr(vae, "tile_sample_stride_height"):
        ratio = vae.spatial_compression_ratio
        vae.enable_tiling(**{name: size * ratio for name, size in SMALL.items()})
    elif hasattr(vae, "tile_overlap_factor_height"):
        vae.enable_tiling(32, 32)
    vae.enable_tiling()
    return vae


def latents(name: str, height: int = 0, width: int = 0) -> torch.Tensor:
    """Of one picture, or a video of some frames; of four tiles at least."""
    frames = [NUM_FRAMES[name]] if name in NUM_FRAMES else []
    height, width = height or (10 if name in LARGE else 5), width or (9 if name in LARGE else 6)
    return torch.randn(1, 4, *frames, height, width, generator=torch.Generator().manual_seed(1))


class Elsewhere:
    """Computes tiles with another VAE, of what comes out of the wire."""

    def __init__(self, vae: Any) -> None:
        self.decoder = copy.deepcopy(vae.decoder)
        self.sizes: list[int] = []  # tiles of each round
        self.num_calls = 0

    def __call__(self, tiles: Sequence[Tile]) -> list[Any]:
        self.sizes.append(len(tiles))
        self.num_calls += sum(map(len, tiles))
        return [sent(decoded(sent(tile), self.decoder)) for tile in tiles]


def sent(value: Any) -> Any:
    header, tensors = pack(value)
    return unpack(header, from_bytes(header, as_bytes(header, tensors, torch.device("cpu"))))


@pytest.mark.parametrize("name", CLASSES)
@torch.inference_mode()
def test_a_picture_of_tiles_from_elsewhere_is_that_of_one_process(name: str) -> None:
    vae = made(name)
    first, second = latents(name), latents(name, 9, 4)
    expected = [vae.decode(one).sample for one in (first, second)]
    elsewhere = Elsewhere(vae)
    shared = SharedTiles(vae, 2, elsewhere)
    shared.install()
    for parameter in vae.decoder.parameters():
        parameter.zero_()  # what is computed here would be wrong
    for one, picture in zip((first, second, first), (*expected, expected[0]), strict=True):
        assert torch.equal(vae.decode(one).sample, picture)
    assert shared.num_tiles == sum(elsewhere.sizes) > 6


@torch.inference_mode()
def test_blocks_of_wan_2_2_and_of_sana_are_no_exception() -> None:
    """Residual blocks and patches; linear attention."""
    more = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}
    wan = {**CONFIGS["AutoencoderKLWan"], **more, "scale_factor_spatial": 4}
    types = {"decoder_block_types": ("ResBlock", "EfficientViTBlock")}
    sana = {**CONFIGS["AutoencoderDC"], **types, "decoder_qkv_multiscales": ((), (5,))}
    for name, config in (("AutoencoderKLWan", wan), ("AutoencoderDC", sana)):
        vae = made(name, config)
        expected = vae.decode(latents(name)).sample
        elsewhere = Elsewhere(vae)
        SharedTiles(vae, 2, elsewhere).install()
        assert torch.equal(vae.decode(latents(name)).sample, expected)
        assert sum(elsewhere.sizes) > 3


@torch.inference_mode()
def test_a_tile_is_all_frames_of_one_place() -> None:
    vae = made("AutoencoderKLWan")
    elsewhere = Elsewhere(vae)
    shared = SharedTiles(vae, 2, elsewhere)
    shared.install()
    vae.decode(latents("AutoencoderKLWan", 3, 6))
    assert elsewhere.sizes == [2, 1]
    assert elsewhere.num_calls == 9  # three latent frames each


@torch.inference_mode()
def test_a_picture_too_small_for_tiles_is_decoded_here() -> None:
    vae = made("AutoencoderKL")
    small = latents("AutoencoderKL", 8, 8)
    expected = vae.decode(small).sample
    elsewhere = Elsewhere(vae)
    SharedTiles(vae, 2, elsewhere).install()
    assert torch.equal(vae.decode(small).sample, expected)
    assert elsewhere.sizes == []


@torch.inference_mode()
def test_tiles_of_another_size_are_cut_anew() -> None:
    vae = made("AutoencoderKLQwenImage")
    elsewhere = Elsewhere(vae)
    SharedTiles(vae, 8, elsewhere).install()
    large = latents("AutoencoderKLQwenImage", 3, 6)
    vae.decode(large)
    vae.tile_sample_stride_width = 2  # one latent, not two
    vae.decode(large)
    assert elsewhere.sizes == [3, 6]


@torch.inference_mode()
def test_no_more_tiles_are_computed_for_a_request_that_is_cancelled() -> None:
    vae = made("AutoencoderKL")
    stop, sizes = Cancellation(), list[int]()

    def compute(tiles: Sequence[Tile]) -> list[Any]:
        sizes.append(len(tiles))
        stop.is_set = True
        return [decoded(tile, vae.decoder) for tile in tiles]

    SharedTiles(vae, 2, compute).install()
    large = latents("AutoencoderKL")
    with stoppable([stop]), pytest.raises(Stopped):
        vae.decode(large)
    assert sizes == [2]
    stop.is_set = False
    bare = made("AutoencoderKL")
    assert torch.equal(vae.decode(large).sample, bare.decode(large).sample)


@torch.inference_mode()
def test_a_failure_leaves_the_vae_as_it_was() -> None:
    vae, bare = made("AutoencoderKLQwenImage"), made("AutoencoderKLQwenImage")
    problems = [RuntimeError("as it was told")]

    def compute(tiles: Sequence[Tile]) -> list[Any]:
        if problems:
            raise problems.pop()
        return [decoded(tile, vae.decoder) for tile in tiles]

    SharedTiles(vae, 2, compute).install()
    large, small = latents("AutoencoderKLQwenImage"), latents("AutoencoderKLQwenImage", 3, 3)
    with pytest.raises(RuntimeError, match="as it was told"):
        vae.decode(large)
    for one in (small, large):
        assert torch.equal(vae.decode(one).sample, bare.decode(one).sample)


@pytest.mark.parametrize("name", ["AutoencoderVidTok", "AutoencoderKLMagvit"])
def test_a_class_whose_tiles_may_depend_on_each_other_is_refused(name: str) -> None:
    assert has_tiles(getattr(diffusers, name))  # so it is not taken for one without
    with pytest.raises(ValueError, match=f"tiles of {name} depend on each other"):
        check_tiles(getattr(diffusers, name))


def test_a_subclass_is_taken_if_its_tiles_are_the_same() -> None:
    class Same(diffusers.AutoencoderKL):  # type: ignore[misc]
        pass

    class Other(diffusers.AutoencoderKL):  # type: ignore[misc]
        def tiled_decode(self, z: Any, return_dict: bool = True) -> Any:
            return super().tiled_decode(z, return_dict)

    check_tiles(Same)
    with pytest.raises(ValueError, match="tiles of Other"):
        check_tiles(Other)
