"""The multiple of a pipeline's sides is the one that the pipeline itself holds to."""

from typing import Any

import pytest
import torch
from support.tiny_pipelines import Settings, made, quiet

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.request.sides import side_multiple

RAISING = ("sd3", "wan")  # others make the size below


@pytest.mark.parametrize(
    ("name", "multiple"), [("flux", 4), ("qwen-image", 8), ("sd3", 2), ("wan", 16)]
)
def test_a_pipeline_makes_multiples_and_no_size_between(name: str, multiple: int) -> None:
    bare = quiet(make_tiny(name))
    assert side_multiple(bare) == multiple

    def size_of(side: int) -> Any:
        arguments = Settings(0, num_steps=2, height=side, width=side).arguments(name)
        with torch.inference_mode():
            return tuple(made(bare(**arguments)).shape[-2:])

    side = 32 + multiple
    assert size_of(side) == (side, side)
    if name in RAISING:
        with pytest.raises(ValueError, match="divisible"):
            size_of(side + multiple // 2)
    else:
        assert size_of(side + multiple // 2) == (side, side)


class Config:
    """A transformer's."""

    patch_size = (1, 2, 3)


class Parts:
    """Of a pipeline, whose numbers are found by their names."""

    scale = 4
    transformer: Any = None
    other = Config


class Literal(Parts):
    def check_inputs(self, height: int, width: int) -> None:
        if height % 8 != 0 or width % 32 != 0:
            raise ValueError


class Named(Parts):
    def __call__(self, height: int, width: int) -> int:
        patch = self.transformer.patch_size if self.transformer else self.other.patch_size
        multiple = self.scale * int(patch[2])
        return height // multiple * multiple


class Unclear(Parts):
    def __call__(self, height: int, width: int) -> int:
        multiple = 4
        multiple = max(multiple, self.scale)
        return height // multiple * multiple + height // 2 * (width // 2) + height % len("abc")


@pytest.mark.parametrize(
    ("pipeline", "multiple"), [(Literal(), 32), (Named(), 12), (Unclear(), 1), (Parts(), 1), (3, 1)]
)
def test_what_a_pipeline_s_code_says_of_its_sides(pipeline: Any, multiple: int) -> None:
    assert side_multiple(pipeline) == multiple
