"""Tiny pipelines of many classes: calls below the engine equal those of a bare twin.

One of each kind of mechanism; `make pipelines` runs all that can be built.
"""

import diffusers
import pytest
import torch
from support.tiny_pipelines.compare import PIXEL, compare


@pytest.mark.filterwarnings("ignore::FutureWarning:diffusers.*")
@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("AnimateDiffPipeline", "none"),  # rows of a video are frames of its text
        ("CogVideoXPipeline", "all"),  # makes one video of each prompt, whatever number is wanted
        ("FluxControlNetPipeline", "all"),  # residuals as lists; a ControlNet at each step
        ("FluxFillPipeline", "all"),
        ("StableDiffusionControlNetPipeline", "all"),
        ("StableDiffusionPAGPipeline", "none"),  # changes its denoiser in a call
        ("StableDiffusionXLPipeline", "all"),
        ("ZImagePipeline", "none"),
    ],
)
def test_calls_alone_and_together_equal_the_bare_pipeline(name: str, shared: str) -> None:
    torch.set_num_threads(1)
    made = compare(getattr(diffusers, name))
    assert made.alone <= PIXEL
    assert made.together <= PIXEL
    assert made.shared == shared
