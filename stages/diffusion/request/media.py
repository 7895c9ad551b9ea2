"""The media that a request brings along, as arguments of its pipeline's call."""

from typing import Any

import numpy as np

from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stage_configs.work import fitting_size
from omnistage.stages.diffusion.pipeline import Arguments
from omnistage.stages.diffusion.request.frames import ARGUMENT as FRAMES
from omnistage.stages.diffusion.request.frames import default_frames, frame_step, frames_name
from omnistage.stages.diffusion.request.keyframes import spread
from omnistage.stages.diffusion.request.places import (
    JOINED,
    Media,
    MediumData,
    RequestMedium,
    plain_frames,
    video_frames,
)
from omnistage.stages.diffusion.request.sound import rate_of
from omnistage.stages.diffusion.request.tasks import PipelineTask, Tasks, arguments_of
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

# Audio to start from, whose rate goes beside it.
START, START_RATE = "initial_audio_waveforms", "initial_audio_sampling_rate"
SIDES = ("width", "height")
SHAPING = ("image", "video", "control_video")
MOVING = ("video", "control_video")
CUT = (video_frames, plain_frames)  # what makes the frames that the result has, or goes beside them
# Classes that go on from their video: it has fewer frames than the result.
GOING_ON = frozenset(
    {
        "AnyFlowFARPipeline",
        "AnyFlowPipeline",
        "Cosmos2VideoToWorldPipeline",
        "Cosmos2_5_PredictBasePipeline",
        "Cosmos3OmniPipeline",
        "CosmosVideoToWorldPipeline",
        "HeliosPipeline",
        "HeliosPyramidPipeline",
        "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
    }
)


def media_of(opened: Opened) -> Media:
    """Return a request's media by field, in the order in which they came."""
    media: Media = {}
    for one in opened.request.given_media:
        data = _array(opened, one.tensor)
        media.setdefault(one.field, []).append(RequestMedium(data, one.rate))
    return media


def _array(opened: Opened, name: str) -> MediumData:
    """Return a medium that came with the request, or before it in pieces."""
    if name in opened.tensors:
        return opened.tensors[name].numpy()
    return next(one.data() for (called, _), one in opened.media.items() if called == name)


def reading_of(tasks: Tasks) -> Reading:
    """Return the fields of media that some task has a place for, for the gateway."""
    fields = list(dict.fromkeys(field for task in tasks.all for field in task.fields))
    counted = [one for one in fields if _is_counted(tasks, one)]
    needed = min((task.missing(()) for task in tasks.all), key=len)
    most: dict[str, int] = {}
    for task in tasks.all:
        for field, place in task.places.items():
            most[field] = max(place.most, most.get(field, 0))
    return Reading(fields=fields, counted=counted, needed=needed, most=most)


def _is_counted(tasks: Tasks, field: str) -> bool:
    """Return whether a result has as many frames as a video of this field."""
    having = [task for task in tasks.all if field in task.places]
    return field in MOVING and all(
        task.places[field].made is video_frames and not _goes_on(task) for task in having
    )


def _goes_on(task: PipelineTask) -> bool:
    return type(task.pipeline).__name__ in GOING_ON


def fitted(task: PipelineTask, media: Media, body: JsonMap) -> tuple[Media, Json]:
    """Return the media as its call takes them, and the request's fields with what they decide.

    A pipeline that repaints pictures or frames makes them of the same size, unless a size is among
    the fields. Raises RequestError, with the field.
    """
    fields = dict(body)
    shaping = next((one for one in SHAPING if one in media and keeps_size(task, one)), None)
    if shaping is not None and not any(fields.get(name) for name in SIDES):
        height, width = media[shaping][0].data.shape[-3:-1]
        fields |= dict(zip(SIDES, fitting_size(width, height), strict=True))
    return with_frames(task, media, fields)


def keeps_size(task: PipelineTask, field: str) -> bool:
    """Return whether a result has the size of a medium of this field: a picture is repainted."""
    known, place = arguments_of(task.pipeline), task.places.get(field)
    if place is None or place.argument in JOINED or not all(name in known for name in SIDES):
        return False
    return field != "image" or "strength" in known


def with_frames(task: PipelineTask, media: Media, fields: JsonMap) -> tuple[Media, Json]:
    """Return videos cut to the frames that are asked for; a mask is repeated for each.

    Without a number as many frames are made as there are. Raises RequestError for too few.
    """
    videos = [field for field in media if task.places[field].made in CUT]
    if not videos or _goes_on(task):
        return media, dict(fields)
    wanted = fields.get(FRAMES)
    moving = {one: len(media[one][0].data) for one in videos if _is_whole(media[one][0])}
    for field, number in moving.items():
        if wanted is not None and wanted > number:
            message = f"{wanted} frames are asked for; {field} has {number}."
            raise RequestError(400, message, param=FRAMES, code="invalid_value")
    step = frame_step(task.pipeline)
    number = wanted or min(moving.values(), default=default_frames(task.pipeline) or 1)
    number = (number - 1) // step * step + 1
    cut = {field: [_cut(media[field][0], number)] for field in videos}
    takes_number = frames_name(arguments_of(task.pipeline)) is not None
    return {**media, **cut}, {**fields, FRAMES: number if takes_number else None}


def _is_whole(medium: RequestMedium) -> bool:
    """Return whether a medium is a video with all of its frames."""
    return medium.data.ndim == 4 and not medium.at


def _cut(medium: RequestMedium, number: int) -> RequestMedium:
    """Return so many frames; a mask is that of each, and frames that are not given are open."""
    data = medium.data
    if medium.at:
        data = spread(medium, number)
    elif data.ndim == 2:
        data = np.broadcast_to(data, (number, *data.shape))
    return RequestMedium(data[:number], medium.rate)


def media_arguments(task: PipelineTask, media: Media, others: Arguments) -> dict[str, Any]:
    """Return the arguments of a call that these media are; `others`: what it has already."""
    others = {FRAMES: default_frames(task.pipeline), **others}
    made: dict[str, Any] = {}
    for field, given in media.items():
        place = task.places[field]
        value: Any = place.made(task.pipeline, others, given)
        if place.argument in made:
            value = [*made[place.argument], *value]
        made[place.argument] = value
    if START in made:
        made[START_RATE] = rate_of(task.pipeline, needs_one=True)
    return made
