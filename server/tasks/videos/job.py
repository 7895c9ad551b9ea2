"""A job that makes a video: what is kept of it, and what clients are told."""

import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from omnistage.server.common.errors import ApiError
from omnistage.server.media.given import Kind

VERSION = 1
UNKNOWN = "auto"  # a size or a length that the pipeline has yet to choose
FAILED = "generation_failed"  # the code of an error without one

Status = Literal["queued", "in_progress", "completed", "failed"]
Variant = Literal["video", "thumbnail", "spritesheet"]
# The files of a finished job, and their media types.
FILES: Mapping[Variant, tuple[str, str]] = {
    "video": ("video.mp4", "video/mp4"),
    "thumbnail": ("thumbnail.webp", "image/webp"),
    "spritesheet": ("spritesheet.jpg", "image/jpeg"),
}


class JobError(msgspec.Struct, frozen=True):
    """The reason of a job's failure, in OpenAI's two fields."""

    code: str
    message: str

    @classmethod
    def of(cls, error: ApiError) -> "JobError":
        """Makes the reason of an error that its client would have had."""
        return cls(error.code or FAILED, error.message)


class StoredMedium(msgspec.Struct, frozen=True):
    """A medium of a job that has not ended: its file, and what `GivenFile` says of it."""

    field: str
    kind: Kind
    param: str
    file: str


class VideoJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is kept; `owner` names the API key that made it, None without keys.

    Times are seconds since 1970. `fields`: of its request, without media. `before`: the file of a
    video that it goes on with. `size` and `seconds`: as asked for, and of the video once that is
    there, like `num_frames` and `fps`. `num_bytes`: of its files.
    """

    version: int = VERSION
    id: str
    owner: str | None
    created_at: float
    model: str
    fields: dict[str, Any]
    media: list[StoredMedium] = []
    before: str | None = None
    status: Status = "queued"
    size: str = UNKNOWN
    seconds: str = UNKNOWN
    num_frames: int | None = None
    fps: float | None = None
    rate: float | None = None
    ended_at: float | None = None
    remixed_from: str | None = None
    error: JobError | None = None
    num_bytes: int = 0

    @property
    def has_ended(self) -> bool:
        """Returns whether it is completed or failed."""
        return self.ended_at is not None

    def failed(self, error: JobError) -> "VideoJob":
        """Return it as it is once it has failed, without media."""
        changes: dict[str, Any] = {"media": [], "before": None, "num_bytes": 0}
        return msgspec.structs.replace(
            self, status="failed", error=error, ended_at=time.time(), **changes
        )

    def completed(
        self, size: tuple[int, int], num_frames: int, fps: float, num_bytes: int
    ) -> "VideoJob":
        """Return it as it is with a video of so many frames and files of so many bytes."""
        return msgspec.structs.replace(
            self,
            status="completed",
            size=size_of(*size),
            seconds=seconds_of(num_frames, fps),
            num_frames=num_frames,
            fps=fps,
            ended_at=time.time(),
            num_bytes=num_bytes,
            media=[],
            before=None,
        )

    def card(self, max_age_s: float, progress: int | None = None) -> dict[str, Any]:
        """Return OpenAI's shape; `progress`: in percent, None while it waits."""
        has_begun = progress is not None and not self.has_ended
        is_complete = self.status == "completed"
        return {
            "id": self.id,
            "object": "video",
            "model": self.model,
            "status": "in_progress" if has_begun else self.status,
            "progress": 100 if is_complete else progress or 0,
            "created_at": int(self.created_at),
            "completed_at": int(self.ended_at) if is_complete and self.ended_at else None,
            "expires_at": None if self.ended_at is None else int(self.ended_at + max_age_s),
            "prompt": self.fields.get("prompt"),
            "size": self.size,
            "seconds": self.seconds,
            "num_frames": self.num_frames,
            "fps": self.fps,
            "remixed_from_video_id": self.remixed_from,
            "error": None if self.error is None else msgspec.to_builtins(self.error),
        }


def size_of(width: int | None, height: int | None) -> str:
    """Return a size as OpenAI writes it."""
    return UNKNOWN if width is None or height is None else f"{width}x{height}"


def seconds_of(num_frames: int | None, fps: float) -> str:
    """Return a length in seconds as OpenAI writes it."""
    return UNKNOWN if num_frames is None else f"{num_frames / fps:.3f}".rstrip("0").rstrip(".")
