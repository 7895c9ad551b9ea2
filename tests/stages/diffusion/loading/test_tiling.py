"""VAEs decode in tiles if that is asked for, of the sizes that are given."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_pipelines import Settings, error, made, quiet

from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.loading.loading import LoadOptions

LARGE = Settings(0, 2, height=48, width=40)
ONE_GPU = {"dtype": "float32", "device": "cpu"}


def picture(pipeline: Any, name: str) -> torch.Tensor:
    with torch.inference_mode():
        return made(quiet(pipeline)(**LARGE.arguments(name)))


@pytest.mark.parametrize(
    ("name", "tiling"),
    [
        ("flux", True),
        ("flux", {"tile_sample_min_size": 16, "tile_latent_min_size": 8}),
        ("qwen-image", {"tile_sample_min_height": 32, "tile_sample_stride_height": 16}),
    ],
)
def test_a_picture_is_that_of_diffusers_own_tiles(name: str, tiling: Any, tmp_path: Path) -> None:
    write_tiny(name, tmp_path)
    bare = make_tiny(name)
    whole = picture(bare, name)
    bare.vae.enable_tiling()
    for size, value in tiling.items() if tiling is not True else ():
        setattr(bare.vae, size, value)
    tiled = picture(bare, name)
    assert error(tiled, whole) > 1e-3
    options = LoadOptions.of({**ONE_GPU, "vae_tiling": tiling})
    assert error(picture(options.load(str(tmp_path)).pipeline, name), tiled) < 1e-5


@pytest.mark.parametrize(
    ("tiling", "says"),
    [
        ("yes", "vae_tiling: must be true, false or a mapping of sizes, not 'yes'"),
        ({"tile_sample_min_size": 0}, "vae_tiling.tile_sample_min_size: must be a number above 0"),
        ({"tile_sample_min_size": True}, "vae_tiling.tile_sample_min_size: must be a number"),
    ],
)
def test_what_is_no_tiling_is_refused(tiling: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LoadOptions.of({"vae_tiling": tiling})


def test_a_size_that_the_vae_does_not_have_is_refused(tmp_path: Path) -> None:
    write_tiny("flux", tmp_path)
    says = "tile_sample_min_height: AutoencoderKL has no such size; it has tile_latent_min_size, "
    with pytest.raises(ValueError, match=says):
        LoadOptions.of({"vae_tiling": {"tile_sample_min_height": 8}}).load(str(tmp_path))


def test_a_pipeline_without_tiles_is_refused(tmp_path: Path) -> None:
    write_tiny("flux", tmp_path)
    options = LoadOptions.of({**ONE_GPU, "vae_tiling": True})
    pipeline = options.read(str(tmp_path), only_denoisers=True)
    with pytest.raises(ValueError, match="vae_tiling: the pipeline has no VAE that decodes in"):
        options.place(pipeline)
