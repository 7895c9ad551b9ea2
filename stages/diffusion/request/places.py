"""The places that pipelines have for media: which argument takes which, in what form."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from omnistage.stages.diffusion.pipeline import Arguments
from omnistage.stages.diffusion.request.sound import given_samples

MANY = 16  # media of one field, where a pipeline knows no limit of its own
# Classes of Diffusers whose `image` may be a list of references; to the others it is a batch.
SEVERAL = frozenset(
    {
        "BriaFibo2Pipeline",
        "Flux2KleinKVPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "GlmImagePipeline",
        "QwenImage21Pipeline",
        "QwenImageEditPlusPipeline",
        "ZImageOmniPipeline",
    }
)
LISTS = frozenset({"GlmImagePipeline"})  # of these, those that take one picture as a list, too
CONDITIONS = ("LTX2VideoCondition", "LTXVideoCondition")  # classes of the objects in `conditions`
# And of those in `reference_conditions`: videos that an adapter of LTX-2 follows.
REFERENCES = ("LTX2HDRReferenceCondition", "LTX2ReferenceCondition")
WHITE = "#fff"
# A warm-up's pictures, height and width; frames as LTX and Wan count them: 8k + 1 and 4k + 1.
STAND_IN, STAND_IN_FRAMES, STAND_IN_SAMPLES = (64, 64), 9, 48_000


MediumData = npt.NDArray[np.uint8 | np.float32]


@dataclass(frozen=True, slots=True)
class RequestMedium:
    """One medium of a request.

    `data`: uint8 [height, width, 3 or 4] of an image, [height, width] of a mask, [frames, height,
    width, 3] of a video, [frames, height, width] of its mask; float32 [channels, samples] of audio.
    `rate`: frames per second, or Hz; 0 of an image. `at`: the frames of the result that those of a
    video or its mask are; empty if they follow one another from the first.
    """

    data: MediumData
    rate: float = 0
    at: tuple[int, ...] = ()


Media = dict[str, list[RequestMedium]]  # of a request, by field
# Of a pipeline, the other arguments of its call, and the media of a field an argument.
Made = Callable[[object, Arguments, Sequence[RequestMedium]], object]


def takes_alpha(pipeline: object) -> bool:
    """Return whether a pipeline's VAE reads pictures with an alpha channel."""
    config = getattr(getattr(pipeline, "vae", None), "config", {})
    return 4 in (config.get("input_channels"), config.get("in_channels"))


def picture(pipeline: object, medium: RequestMedium) -> Image.Image:
    """Return an image or a mask as Pillow's, with the channels that a pipeline reads."""
    image = Image.fromarray(medium.data)
    if image.mode == "RGB" and takes_alpha(pipeline):
        return image.convert("RGBA")
    if image.mode == "RGBA" and not takes_alpha(pipeline):
        ground = Image.new("RGBA", image.size, WHITE)
        return Image.alpha_composite(ground, image).convert("RGB")
    return image


def _one(pipeline: object, others: Arguments, media: Sequence[RequestMedium]) -> Image.Image:
    return picture(pipeline, media[0])


def _listed(
    pipeline: object, others: Arguments, media: Sequence[RequestMedium]
) -> list[Image.Image]:
    return [picture(pipeline, one) for one in media]


def _one_or_list(pipeline: object, others: Arguments, media: Sequence[RequestMedium]) -> object:
    pictures = _listed(pipeline, others, media)
    is_list = len(pictures) > 1 or type(pipeline).__name__ in LISTS
    return pictures if is_list else pictures[0]


def plain_frames(
    pipeline: object, others: Arguments, media: Sequence[RequestMedium]
) -> list[Image.Image]:
    """Return the frames of a video as they are."""
    return [Image.fromarray(one) for one in media[0].data]


def video_frames(
    pipeline: object, others: Arguments, media: Sequence[RequestMedium]
) -> list[Image.Image]:
    """Return the frames of a video or of its mask, as large as a call's `width` and `height`."""
    frames = plain_frames(pipeline, others, media)
    width, height = others.get("width"), others.get("height")
    if width is None or height is None or frames[0].size == (width, height):
        return frames
    how = Image.Resampling.NEAREST if frames[0].mode == "L" else Image.Resampling.LANCZOS
    return [one.resize((width, height), how) for one in frames]


def _samples(pipeline: object, others: Arguments, media: Sequence[RequestMedium]) -> torch.Tensor:
    return given_samples(pipeline, np.asarray(media[0].data, np.float32), media[0].rate)


def _sample_rows(
    pipeline: object, others: Arguments, media: Sequence[RequestMedium]
) -> torch.Tensor:
    return _samples(pipeline, others, media)[None]


def _first(pipeline: object, others: Arguments, media: Sequence[RequestMedium]) -> list[object]:
    return [_condition(pipeline, picture(pipeline, media[0]), 0)]


def _last(pipeline: object, others: Arguments, media: Sequence[RequestMedium]) -> list[object]:
    return [_condition(pipeline, picture(pipeline, media[0]), others["num_frames"] - 1)]


def _from_start(
    pipeline: object, others: Arguments, media: Sequence[RequestMedium]
) -> list[object]:
    return [_condition(pipeline, plain_frames(pipeline, others, media), 0)]


def _reference(pipeline: object, others: Arguments, media: Sequence[RequestMedium]) -> list[object]:
    made = _class_beside(pipeline, REFERENCES)
    return [made(frames=plain_frames(pipeline, others, media))]


def _condition(pipeline: object, given: Image.Image | list[Image.Image], frame: int) -> object:
    """Return a condition from a frame on: LTX-2 counts latents, of which -1 is the last."""
    made = _class_beside(pipeline, CONDITIONS)
    if made.__name__ == CONDITIONS[0]:
        return made(frames=given, index=-1 if frame else 0)
    name = "video" if isinstance(given, list) else "image"
    return made(**{name: given}, frame_index=frame)


def _class_beside(pipeline: object, names: Sequence[str]) -> type[Any]:
    """Return the first of the named classes that a pipeline's module has."""
    module = sys.modules[type(pipeline).__module__]
    made: type[Any] = next(getattr(module, name) for name in names if hasattr(module, name))
    return made


def _listed_samples(
    pipeline: object, others: Arguments, media: Sequence[RequestMedium]
) -> list[torch.Tensor]:
    return [_samples(pipeline, others, [one]) for one in media]


@dataclass(frozen=True, slots=True)
class MediaPlace:
    """An argument of a pipeline's call that takes the media of a field.

    `made`: their value; `most` of them go into it.
    """

    argument: str
    made: Made
    most: int = 1


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """A line of the table: media of `field` go to `argument` of calls that have it.

    `beside`: and one of these; `without`: and none of these.
    """

    field: str
    argument: str
    made: Made
    most: int = 1
    beside: Collection[str] = ()
    without: Collection[str] = ()

    def fits(self, known: Collection[str]) -> bool:
        """Return whether a call with these arguments has the row's."""
        has_beside = not self.beside or any(name in known for name in self.beside)
        has_other = any(name in known for name in self.without)
        return self.argument in known and has_beside and not has_other


SCALES = ("controlnet_conditioning_scale", "adapter_conditioning_scale")
EDITS = ("control_image", "mask_image", "strength")
# Of each field the first row that fits. An argument takes one field, unless its values are lists.
TABLE = (
    PlaceRow("control_image", "control_image", _one_or_list, MANY, without=("control_mask",)),
    PlaceRow("control_image", "image", _one_or_list, MANY, beside=SCALES, without=EDITS),
    PlaceRow("control_image", "condtioning_image", _one),  # as BlipDiffusion writes it
    PlaceRow("image", "control_image", _one, beside=("control_mask",)),
    PlaceRow("image", "input_images", _listed, MANY),
    PlaceRow("image", "images", _listed, MANY),
    PlaceRow("image", "conditions", _first),
    PlaceRow("image", "image", _one_or_list, MANY),
    PlaceRow("image", "cond_image", _one),
    PlaceRow("image", "reference_image", _one, beside=("condtioning_image",)),
    PlaceRow("mask", "mask_image", _one),
    PlaceRow("mask", "control_mask", _one),
    PlaceRow("mask", "mask_video", video_frames, beside=("video", "background_video")),
    PlaceRow("mask", "mask", video_frames, beside=("video",)),
    PlaceRow("mask", "mask", _one, beside=("image",)),
    PlaceRow("last_image", "last_image", _one),
    PlaceRow("last_image", "conditions", _last),
    PlaceRow("video", "conditions", _from_start),
    PlaceRow("video", "video", video_frames),
    PlaceRow("video", "driving_video", video_frames),
    PlaceRow("video", "background_video", video_frames),
    PlaceRow("control_video", "control_video", video_frames),
    PlaceRow("control_video", "conditioning_frames", video_frames),
    PlaceRow("control_video", "controls", video_frames),
    PlaceRow("control_video", "pose_video", video_frames),
    PlaceRow("control_video", "reference_conditions", _reference),
    PlaceRow("face_video", "face_video", plain_frames),
    PlaceRow("reference_image", "reference_images", _listed, MANY),
    PlaceRow("reference_image", "image_reference", _one),
    PlaceRow("reference_image", "ref_image", _one),
    PlaceRow("reference_image", "memory_images", _listed, MANY),
    PlaceRow("reference_image", "original_image", _one),
    PlaceRow("audio", "src_audio", _samples),
    PlaceRow("audio", "audio", _sample_rows),
    PlaceRow("reference_audio", "reference_audio", _samples),
    PlaceRow("audio", "initial_audio_waveforms", _sample_rows),
    PlaceRow("audio_reference", "reference_audios", _listed_samples, MANY),
)
JOINED = frozenset({"conditions"})


def places_of(known: Collection[str], takes_several: bool) -> dict[str, MediaPlace]:
    """Return the places of a pipeline whose call has these arguments, by the fields of media.

    `takes_several`: a list in its `image` is references of one result, not a batch.
    """
    places: dict[str, MediaPlace] = {}
    taken: set[str] = set()
    for row in TABLE:
        is_free = row.argument not in taken or row.argument in JOINED
        if row.field not in places and is_free and row.fits(known):
            is_single = row.argument == row.field == "image" and not takes_several
            places[row.field] = MediaPlace(row.argument, row.made, 1 if is_single else row.most)
            taken.add(row.argument)
    return places


def limited(places: Mapping[str, MediaPlace], made: type) -> dict[str, MediaPlace]:
    """Return places for no more media of a field than a pipeline's class says it takes."""
    limits: Mapping[str, int] = getattr(made, "media_limits", {})
    return {
        field: replace(place, most=min(place.most, limits.get(field, place.most)))
        for field, place in places.items()
    }


def num_controls(pipeline: object) -> int:
    """Return how many control pictures a call has: one for each of its ControlNets or adapters."""
    for component, name in (("controlnet", "nets"), ("adapter", "adapters")):
        nets = getattr(getattr(pipeline, component, None), name, None)
        if nets is not None:
            return len(nets)
    return 1


def stand_ins(pipeline: object, fields: Collection[str], num_frames: int | None) -> Media:
    """Return blank media for some fields of a pipeline, to warm it up; videos of so many frames."""
    height, width = STAND_IN
    video = np.zeros((num_frames or STAND_IN_FRAMES, height, width, 3), np.uint8)
    blank: dict[str, MediumData] = {
        "mask": np.full((height, width), 255, np.uint8),
        "video": video,
        "control_video": video,
        "face_video": video,
        "audio": np.zeros((2, STAND_IN_SAMPLES), np.float32),
        "audio_reference": np.full((1, STAND_IN_SAMPLES), 0.1, np.float32),  # silence is refused
    }
    counts = {"control_image": num_controls(pipeline)}
    still = np.zeros((height, width, 3), np.uint8)
    return {
        field: [RequestMedium(blank.get(field, still))] * counts.get(field, 1) for field in fields
    }
