"""Videos and masks of a request, cut and repeated as its pipeline takes them."""

from typing import Any

import diffusers
import numpy as np
import pytest

from omnistage.stages.diffusion.request.media import fitted, media_arguments, reading_of
from omnistage.stages.diffusion.request.places import Media, RequestMedium
from omnistage.stages.diffusion.request.tasks import PipelineTask, Tasks
from omnistage.stages.worker.failure import RequestError

WIDTH, HEIGHT = 100, 57
SIDES = {"width": 96, "height": 48}  # the multiples of 16 below


def task(name: str, step: int = 4) -> PipelineTask:
    """Of a class without its components, whose VAE keeps one latent for so many frames."""
    made: Any = object.__new__(getattr(diffusers, name))
    made.vae_scale_factor_temporal = step
    return PipelineTask.of(made)


def video(num_frames: int) -> RequestMedium:
    """A video whose frame i is of brightness i."""
    shape = (num_frames, HEIGHT, WIDTH, 3)
    return RequestMedium(
        np.broadcast_to(np.arange(num_frames, dtype=np.uint8)[:, None, None, None], shape)
    )


def mask() -> RequestMedium:
    return RequestMedium(np.full((HEIGHT, WIDTH), 255, np.uint8))


@pytest.mark.parametrize(
    ("given", "wanted", "made"),
    [(9, None, 9), (12, None, 9), (9, 5, 5), (9, 8, 5), (9, 9, 9), (1, None, 1)],
)
def test_a_video_decides_how_many_frames_are_made(given: int, wanted: Any, made: int) -> None:
    media: Media = {"video": [video(given)], "mask": [mask()]}
    vace = task("WanVACEPipeline")
    media, fields = fitted(vace, media, {"num_frames": wanted})
    assert fields == {"num_frames": made, **SIDES}
    arguments = media_arguments(vace, media, SIDES)
    assert len(arguments["video"]) == len(arguments["mask"]) == made
    assert {one.size for one in [*arguments["video"], *arguments["mask"]]} == {(96, 48)}
    assert [one.getpixel((0, 0))[0] for one in arguments["video"]] == list(range(made))
    assert all(one.getextrema() == (255, 255) for one in arguments["mask"])


def test_more_frames_than_a_video_has_are_a_400() -> None:
    with pytest.raises(RequestError) as refusal:
        fitted(task("WanVACEPipeline"), {"video": [video(9)]}, {"num_frames": 13})
    assert (refusal.value.status, refusal.value.param) == (400, "num_frames")


def test_a_call_without_a_number_of_frames_gets_a_shorter_video() -> None:
    media, fields = fitted(
        task("WanVideoToVideoPipeline"), {"video": [video(9)]}, {"num_frames": 5, **SIDES}
    )
    assert len(media["video"][0].data) == 5
    assert fields == {"num_frames": None, **SIDES}


@pytest.mark.parametrize(
    "name", ["Cosmos2VideoToWorldPipeline", "SkyReelsV2DiffusionForcingVideoToVideoPipeline"]
)
def test_a_pipeline_that_goes_on_from_a_video_makes_more_frames(name: str) -> None:
    media, fields = fitted(task(name), {"video": [video(9)]}, {"num_frames": 13})
    assert len(media["video"][0].data) == 9
    assert fields["num_frames"] == 13


@pytest.mark.parametrize(
    ("sizes", "at"),
    [({"image": 32}, (0,)), ({"last_image": 32}, (4,)), ({"image": 32, "last_image": 48}, (0, 4))],
)
def test_first_and_last_frames_of_vace_are_a_video_and_its_mask(
    sizes: dict[str, int], at: tuple[int, ...]
) -> None:
    white = {
        field: [RequestMedium(np.full((size, size, 3), 255, np.uint8))]
        for field, size in sizes.items()
    }
    chosen, read = Tasks([task("WanVACEPipeline")]).choose(white, "video")
    media, fields = fitted(chosen, read, {"num_frames": 5})
    video, mask = (media[field][0].data for field in ("video", "mask"))
    assert fields == {"num_frames": 5, "height": 32, "width": 32}
    assert (video.shape, mask.shape) == ((5, 32, 32, 3), (5, 32, 32))
    for position in range(5):
        given, mean = position in at, video[position].mean()
        assert (mean, mask[position].mean()) == ((255, 0) if given else (128, 255))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (("image", "video"), "video"),
        (("image", "mask"), "mask"),
        (("image", "image"), "input_reference"),
    ],
)
def test_what_first_frames_cannot_stand_beside_is_a_400(
    fields: tuple[str, ...], param: str
) -> None:
    media: Media = {}
    for field in fields:
        media.setdefault(field, []).append(video(9) if field == "video" else mask())
    with pytest.raises(RequestError) as refusal:
        Tasks([task("WanVACEPipeline")]).choose(media, "video")
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_a_mask_alone_is_that_of_every_frame() -> None:
    media, fields = fitted(task("WanVACEPipeline"), {"mask": [mask()]}, {"num_frames": 5})
    assert media["mask"][0].data.shape == (5, HEIGHT, WIDTH)
    assert fields["num_frames"] == 5


@pytest.mark.parametrize(
    ("name", "fields", "sides"),
    [
        ("FluxImg2ImgPipeline", {}, SIDES),
        ("FluxImg2ImgPipeline", {"width": 64}, {"width": 64}),
        ("FluxKontextPipeline", {}, {}),
        ("WanImageToVideoPipeline", {}, {}),
        ("LTXConditionPipeline", {}, {}),
    ],
)
def test_a_repainted_picture_keeps_its_size(
    name: str, fields: dict[str, Any], sides: dict[str, int]
) -> None:
    picture = RequestMedium(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    assert fitted(task(name), {"image": [picture]}, fields)[1] == sides


VACE = {"video", "mask", "reference_image", "image", "last_image"}


@pytest.mark.parametrize(
    ("names", "fields", "counted", "needed"),
    [
        (["WanPipeline"], set(), [], []),
        (["WanImageToVideoPipeline"], {"image", "last_image"}, [], ["image"]),
        (["WanVideoToVideoPipeline"], {"video"}, ["video"], ["video"]),
        (["WanPipeline", "WanVideoToVideoPipeline"], {"video"}, ["video"], []),
        (["WanVACEPipeline"], VACE, ["video"], []),
        (["SkyReelsV2DiffusionForcingVideoToVideoPipeline"], {"video"}, [], ["video"]),
        (["LTXPipeline", "LTXConditionPipeline"], {"image", "last_image", "video"}, [], []),
    ],
)
def test_the_gateway_knows_the_media_that_tasks_have_places_for(
    names: list[str], fields: set[str], counted: list[str], needed: list[str]
) -> None:
    reading = reading_of(Tasks([task(name) for name in names]))
    assert reading.fields is not None
    assert set(reading.fields) == fields
    assert reading.counted == counted
    assert reading.needed == needed
