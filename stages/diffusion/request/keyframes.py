"""First and last frames for pipelines that read them as a video and its mask."""

import numpy as np
from PIL import Image

from omnistage.stages.diffusion.request.places import Media, MediumData, RequestMedium

# Classes whose gray frames below a white mask are made, and that have no argument for one image.
KEYED = frozenset({"WanVACEPipeline"})
POSITIONS = {"image": 0, "last_image": -1}  # of frames in the result, by field
GRAY, WHITE = 128, 255  # a frame that is made, and its mask


def keyed(media: Media) -> Media:
    """Return first and last frames as a video and its mask; nothing if they cannot be that.

    The last frame gets the first one's size.
    """
    given = {field: one for field, one in media.items() if field in POSITIONS}
    is_free = not media.keys() & {"video", "mask"}
    if not given or not is_free or any(len(one) > 1 for one in given.values()):
        return {}
    images = [Image.fromarray(one[0].data).convert("RGB") for one in given.values()]
    size = images[0].size
    frames = [one if one.size == size else one.resize(size) for one in images]
    at = tuple(POSITIONS[field] for field in given)
    video = np.stack([np.asarray(one) for one in frames])
    mask = np.zeros(video.shape[:3], np.uint8)
    others = {field: one for field, one in media.items() if field not in given}
    return {"video": [RequestMedium(video, at=at)], "mask": [RequestMedium(mask, at=at)], **others}


def is_keyed(media: Media) -> bool:
    """Return whether a video has first or last frames alone."""
    return any(one.at for listed in media.values() for one in listed)


def spread(medium: RequestMedium, number: int) -> MediumData:
    """Return so many frames of a video or its mask; those that are not given are to be made."""
    rest = GRAY if medium.data.ndim == 4 else WHITE
    made = np.full((number, *medium.data.shape[1:]), rest, np.uint8)
    for position, frame in zip(medium.at, medium.data, strict=True):
        made[position] = frame
    return made
