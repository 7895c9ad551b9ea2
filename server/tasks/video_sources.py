"""Videos made of others: changed as a prompt says, or gone on with."""

import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from PIL import Image

from omnistage.server.common.errors import ApiError, fields_named
from omnistage.server.common.fields import parse
from omnistage.server.media.decode_room import DecodeRoom
from omnistage.server.media.given import GivenFile, read_given
from omnistage.server.media.images import File, Pixels
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.tasks.service import Service
from omnistage.server.tasks.video_task import MadeVideo, video_stage
from omnistage.server.tasks.videos.media import Source
from omnistage.server.tasks.videos.schema import ExtensionRequest, VideoRequest

VIDEO, IMAGE = "video", "image"  # fields of media


@dataclass(frozen=True, slots=True)
class Origin:
    """The video that a new one is made of: its id, if it is kept, and its frames a second.

    `before`: its file and `num_frames` where the new one goes on behind it.
    """

    video_id: str | None = None
    fps: float | None = None
    before: bytes | None = None
    num_frames: int = 0


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Extension:
    """The request for what follows a video: its fields and media."""

    fields: VideoRequest
    sources: Sequence[Source]
    origin: Origin


def video_source(file: File) -> Source:
    """Return a video as the medium that is changed."""
    return Source(VIDEO, "video", file)


async def extension_of(
    service: Service, asked: ExtensionRequest, file: File, origin: Origin, until: ExitStack
) -> Extension:
    """Return how a video goes on; ApiError if the pipeline cannot.

    A pipeline that goes on from a video makes all of it anew. One that takes a first frame begins
    with the last one, and what it makes is put behind the video.
    """
    stage = video_stage(service)
    reading = stage.reading
    goes_on = VIDEO in (reading.fields or ()) and VIDEO not in reading.counted
    if not goes_on and reading.fields is not None and IMAGE not in reading.fields:
        message = "This model goes on with no video: it takes no first frame."
        raise ApiError(400, message, param="video", code="unsupported_model")
    given = await read_given([GivenFile(VIDEO, "video", file)], service.media.room, until)
    (video,) = given.arrays
    frames, fps = video.array, origin.fps or video.rate
    height, width = frames.shape[1:3]
    seconds = asked.seconds + (len(frames) / fps if goes_on else 0)
    body = {**asked.given, "width": width, "height": height, "seconds": seconds}
    with fields_named(lambda field: VIDEO if field in ("width", "height") else field):
        fields = parse(VideoRequest, {**body, "model": asked.model})
    if goes_on:
        return Extension(fields, [video_source(file)], Origin(origin.video_id, fps))
    last = Source(IMAGE, "image", File(file.param, _png(frames[-1])))
    return Extension(fields, [last], Origin(origin.video_id, fps, file.data, len(frames)))


async def following_on(file: File, made: MadeVideo, room: DecodeRoom) -> MadeVideo:
    """Return a video and what follows it, whose first frame is its last one; raises ApiError."""
    with ExitStack() as until:
        given = await read_given([GivenFile(VIDEO, "video", file)], room, until)
        (video,) = given.arrays
        height, width = video.array.shape[1:3]
        if made.frames[0].size != (width, height):
            size = "{} x {}".format(*made.frames[0].size)
            message = f"The pipeline made frames of {size} behind some of {width} x {height}."
            raise ApiError(500, message, code="bad_pipeline_output")
        before = [ImageOutput(frame.tobytes(), width, height) for frame in video.array]
    return MadeVideo([*before, *made.frames[1:]], made.fps)


def _png(frame: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
