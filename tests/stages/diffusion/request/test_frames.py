"""The frames that pipelines make by default, and the numbers that they round to."""

from typing import Any

import diffusers
import pytest
import torch
from support.tiny_pipelines import Settings, made, quiet

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.request.arguments import call_arguments
from omnistage.stages.diffusion.request.extra import plain_argument
from omnistage.stages.diffusion.request.frames import default_frames, frame_step
from omnistage.stages.worker.failure import RequestError


class Config:
    """Of a UNet."""

    num_frames = 14


class Parts:
    """A pipeline of which only the call is looked at."""

    __call__: Any

    unet: Any = Config

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class Plain(Parts):
    def __call__(self, num_frames: int = 81) -> None: ...


class Assigned(Parts):
    def __call__(self, num_frames: int | None = None, auto: bool = False) -> int:
        if num_frames is None and not auto:
            num_frames = 121
        return num_frames or 0


class Conditional(Parts):
    def __call__(self, num_frames: int | None = None) -> int:
        num_frames = num_frames if num_frames is not None else self.unet.num_frames
        return int(num_frames)


class Unknown(Parts):
    def __call__(self, num_frames: int | None = None) -> int:
        return num_frames or len(str(self))


class Frames(Parts):
    def __call__(self, frames: int = 81) -> None: ...


class Length(Parts):
    def __call__(self, video_length: int = 16) -> None: ...


class Given(Parts):
    def __call__(self, frames: list[Any] | None = None) -> None: ...


class Pictures(Parts):
    def __call__(self, prompt: str) -> None: ...


@pytest.mark.parametrize(
    ("made_of", "frames"),
    [
        (Plain, 81),
        (Assigned, 121),
        (Conditional, 14),
        (Frames, 81),
        (Length, 16),
        (Given, None),
        (Unknown, None),
        (Pictures, None),
    ],
)
def test_a_default_that_is_none_is_the_number_in_the_call(
    made_of: type[Parts], frames: int | None
) -> None:
    assert default_frames(made_of()) == frames


def test_ltx_2_makes_121_frames_by_default() -> None:
    bare = object.__new__(diffusers.LTX2Pipeline)
    assert default_frames(bare) == 121


def test_a_step_has_one_of_two_names() -> None:
    assert frame_step(Plain(vae_scale_factor_temporal=4)) == 4
    assert frame_step(Plain(vae_temporal_compression_ratio=8)) == 8
    assert frame_step(Plain()) == 1


def test_wan_makes_its_steps_and_one_frame() -> None:
    bare = quiet(make_tiny("wan"))
    step = frame_step(bare)
    assert step == 4
    arguments = Settings(0, num_steps=2, height=32, width=32).arguments("wan")
    for wanted, num in ((5, 5), (6, 5), (9, 9)):
        with torch.inference_mode():
            frames = made(bare(**{**arguments, "num_frames": wanted}))
        assert frames.shape[1] == num
        assert (num - 1) % step == 0


@pytest.mark.parametrize(
    ("made_of", "argument"), [(Plain, "num_frames"), (Frames, "frames"), (Length, "video_length")]
)
def test_a_number_of_frames_goes_to_the_argument_that_the_class_has(
    made_of: type[Parts], argument: str
) -> None:
    arguments = call_arguments(made_of(), {"prompt": "a cat", "num_frames": 5}, None)
    assert arguments[argument] == 5
    with pytest.raises(ValueError, match="field"):
        plain_argument(made_of(), argument, 5)


@pytest.mark.parametrize("made_of", [Given, Pictures])
def test_a_number_of_frames_is_refused_where_there_is_none(made_of: type[Parts]) -> None:
    with pytest.raises(RequestError, match="takes no num_frames"):
        call_arguments(made_of(), {"prompt": "a cat", "num_frames": 5}, None)
