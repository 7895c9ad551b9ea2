"""Which argument of a pipeline takes which medium, by the signatures of Diffusers' classes."""

from typing import Any

import diffusers
import numpy as np
import pytest
from PIL import Image

from omnistage.stages.diffusion.request.media import media_arguments, with_frames
from omnistage.stages.diffusion.request.places import (
    JOINED,
    MANY,
    MediaPlace,
    RequestMedium,
    limited,
)
from omnistage.stages.diffusion.request.tasks import PipelineTask

PLACES: dict[str, dict[str, str]] = {
    "AceStepPipeline": {"audio": "src_audio", "reference_audio": "reference_audio"},
    "AnimateDiffControlNetPipeline": {"control_video": "conditioning_frames"},
    "BlipDiffusionControlNetPipeline": {
        "control_image": "condtioning_image",
        "image": "reference_image",
    },
    "BriaFiboEditPipeline": {"image": "image", "mask": "mask"},
    "CogVideoXFunControlPipeline": {"control_video": "control_video"},
    "CogVideoXImageToVideoPipeline": {"image": "image"},
    "Cosmos2_5_TransferPipeline": {"control_video": "controls"},
    "EasyAnimateControlPipeline": {
        "control_video": "control_video",
        "reference_image": "ref_image",
    },
    "EasyAnimateInpaintPipeline": {"mask": "mask_video", "video": "video"},
    "Flux2KleinInpaintPipeline": {
        "image": "image",
        "mask": "mask_image",
        "reference_image": "image_reference",
    },
    "FluxControlNetInpaintPipeline": {
        "control_image": "control_image",
        "image": "image",
        "mask": "mask_image",
    },
    "FluxControlPipeline": {"control_image": "control_image"},
    "FluxPipeline": {},
    "IFImg2ImgSuperResolutionPipeline": {"image": "image", "reference_image": "original_image"},
    "JoyImageEditPlusPipeline": {"image": "images"},
    "LTX2ConditionPipeline": {
        "image": "conditions",
        "last_image": "conditions",
        "video": "conditions",
    },
    "LTX2HDRPipeline": {"control_video": "reference_conditions"},
    "LTXI2VLongMultiPromptPipeline": {"image": "cond_image"},
    "OmniGenPipeline": {"image": "input_images"},
    "QwenImageControlNetInpaintPipeline": {"image": "control_image", "mask": "control_mask"},
    "QwenImageEditPlusPipeline": {"image": "image"},
    "StableAudio3InpaintPipeline": {"audio": "audio"},
    "StableDiffusionAdapterPipeline": {"control_image": "image"},
    "StableDiffusionControlNetImg2ImgPipeline": {
        "control_image": "control_image",
        "image": "image",
    },
    "StableDiffusionControlNetPipeline": {"control_image": "image"},
    "WanAnimatePipeline": {
        "control_video": "pose_video",
        "face_video": "face_video",
        "image": "image",
        "mask": "mask_video",
        "video": "background_video",
    },
    "WanImageToVideoPipeline": {"image": "image", "last_image": "last_image"},
    "WanVACEPipeline": {
        "mask": "mask",
        "video": "video",
        "reference_image": "reference_images",
    },
    "WanVideoToVideoPipeline": {"video": "video"},
}
NEEDED: dict[str, set[str]] = {
    "EasyAnimateInpaintPipeline": {"mask", "video"},
    "Flux2KleinPipeline": set(),
    "FluxControlNetImg2ImgPipeline": {"control_image", "image"},
    "FluxFillPipeline": {"image", "mask"},
    "FluxKontextPipeline": set(),
    "HunyuanVideo15ImageToVideoPipeline": {"image"},
    "LTX2ImageToVideoPipeline": {"image"},
    "QwenImageEditPipeline": {"image"},
    "WanAnimatePipeline": {"control_video", "face_video", "image"},
    "WanVACEPipeline": set(),
    "WanVideoToVideoPipeline": {"video"},
    "ZImageControlNetPipeline": {"control_image"},
}
SEVERAL = {
    "Flux2Pipeline",
    "JoyImageEditPlusPipeline",
    "OmniGenPipeline",
    "QwenImageEditPlusPipeline",
}
SINGLE = {"FluxKontextPipeline", "QwenImageEditPipeline", "WanImageToVideoPipeline"}


def task(name: str) -> PipelineTask:
    """Of a class without its components."""
    made: Any = getattr(diffusers, name)
    return PipelineTask.of(object.__new__(made))


@pytest.mark.parametrize("name", PLACES)
def test_each_medium_has_the_argument_that_is_for_it(name: str) -> None:
    assert {field: place.argument for field, place in task(name).places.items()} == PLACES[name]


@pytest.mark.parametrize("name", NEEDED)
def test_what_a_class_cannot_do_without(name: str) -> None:
    assert task(name).needed == NEEDED[name]


def test_several_pictures_go_where_they_are_not_a_batch() -> None:
    assert {name for name in SEVERAL | SINGLE if task(name).places["image"].most > 1} == SEVERAL


@pytest.mark.parametrize(
    ("name", "is_list"), [("GlmImagePipeline", True), ("Flux2Pipeline", False)]
)
def test_one_picture_is_a_list_where_the_class_takes_no_other(name: str, is_list: bool) -> None:
    found = task(name)
    medium = RequestMedium(np.zeros((8, 8, 3), np.uint8))
    made = found.places["image"].made(found.pipeline, {}, [medium])
    assert isinstance(made, list) == is_list


def test_no_class_of_diffusers_gets_one_argument_from_two_media() -> None:
    names = [name for name in dir(diffusers) if name.endswith("Pipeline")]
    found = [getattr(diffusers, name) for name in names]
    callable_ones = [one for one in found if "__call__" in dir(one)]
    assert len(callable_ones) > 200
    for made in callable_ones:
        places = PipelineTask.of(object.__new__(made)).places.values()
        arguments = [one.argument for one in places if one.argument not in JOINED]
        assert len(arguments) == len(set(arguments)), made.__name__


@pytest.mark.parametrize("name", ["LTX2ConditionPipeline", "LTXConditionPipeline"])
def test_conditions_are_objects_of_the_pipelines_own_kind(name: str) -> None:
    found = task(name)
    picture, frames = np.zeros((8, 8, 3), np.uint8), np.zeros((9, 8, 8, 3), np.uint8)
    media = {
        "image": [RequestMedium(picture)],
        "last_image": [RequestMedium(picture)],
        "video": [RequestMedium(frames)],
    }
    first, last, video = media_arguments(found, media, {"num_frames": 17})["conditions"]
    if name.startswith("LTX2"):
        assert (first.index, last.index, video.index) == (0, -1, 0)
        assert len(video.frames) == 9
    else:
        assert (first.frame_index, last.frame_index, video.frame_index) == (0, 16, 0)
        assert isinstance(first.image, Image.Image)
        assert first.video is None
        assert len(video.video) == 9


@pytest.mark.parametrize("name", ["LTX2HDRPipeline", "LTX2InContextPipeline"])
def test_a_video_to_follow_is_an_object_of_the_pipelines_own_kind(name: str) -> None:
    media = {"control_video": [RequestMedium(np.zeros((9, 8, 8, 3), np.uint8))]}
    (reference,) = media_arguments(task(name), media, {})["reference_conditions"]
    assert (len(reference.frames), reference.strength) == (9, 1.0)


def test_a_face_keeps_its_size_beside_a_pose_of_the_result() -> None:
    found, sides = task("WanAnimatePipeline"), {"width": 32, "height": 16}
    pose, face = np.zeros((7, 24, 48, 3), np.uint8), np.zeros((9, 8, 8, 3), np.uint8)
    media = {"control_video": [RequestMedium(pose)], "face_video": [RequestMedium(face)]}
    vars(found.pipeline)["vae_scale_factor_temporal"] = 4
    cut, fields = with_frames(found, media, sides)
    made = media_arguments(found, cut, sides)
    sizes = {name: [one.size for one in frames] for name, frames in made.items()}
    assert sizes == {"pose_video": [(32, 16)] * 5, "face_video": [(8, 8)] * 5}
    assert fields["num_frames"] is None


def test_a_picture_has_the_channels_that_the_pipeline_reads() -> None:
    with_alpha = task("QwenImageLayeredPipeline")
    vars(with_alpha.pipeline)["vae"] = type("Vae", (), {"config": {"input_channels": 4}})()
    clear = np.zeros((4, 4, 4), np.uint8)
    for found, mode, corner in (
        (with_alpha, "RGBA", (0, 0, 0, 0)),
        (task("QwenImageEditPipeline"), "RGB", (255, 255, 255)),
    ):
        made = media_arguments(found, {"image": [RequestMedium(clear)]}, {})["image"]
        assert (made.mode, made.getpixel((0, 0))) == (mode, corner)
    opaque = media_arguments(with_alpha, {"image": [RequestMedium(clear[..., :3])]}, {})["image"]
    assert opaque.getpixel((0, 0)) == (0, 0, 0, 255)


@pytest.mark.parametrize(
    ("limits", "most"), [({"image": 5}, 5), ({"image": 99}, MANY), ({"mask": 1}, MANY), ({}, MANY)]
)
def test_a_class_may_take_fewer_media_of_a_field(limits: dict[str, int], most: int) -> None:
    places = {"image": MediaPlace("input_images", lambda *given: given, MANY)}
    made = type("Made", (), {"media_limits": limits} if limits else {})
    assert limited(places, made)["image"].most == most
