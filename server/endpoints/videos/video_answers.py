"""Describes jobs of videos, for the API's description."""

from typing import Literal

from typing_extensions import TypedDict


class VideoError(TypedDict):
    """The reason of a job's failure."""

    code: str
    message: str


class VideoJobAnswer(TypedDict):
    """A job that makes a video; `size` and `seconds` are auto until the pipeline has chosen."""

    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str | None
    size: str
    seconds: str
    num_frames: int | None
    fps: float | None
    remixed_from_video_id: str | None
    error: VideoError | None


class VideoList(TypedDict):
    """A page of jobs."""

    object: Literal["list"]
    data: list[VideoJobAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVideo(TypedDict):
    """A job that is not there any more."""

    object: Literal["video.deleted"]
    id: str
    deleted: Literal[True]
