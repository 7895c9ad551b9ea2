"""The body of a request for a video, and its schema."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request

from omnistage.server.common.errors import invalid
from omnistage.server.endpoints.media_form import (
    Body,
    MediaForm,
    Schema,
    media_body,
    read_media_form,
)
from omnistage.server.tasks.videos.media import FIELDS
from omnistage.server.tasks.videos.schema import WORDS, VideoEditRequest

F_co = TypeVar("F_co", bound=VideoEditRequest, covariant=True)


async def read_video_form(
    http: Request, model: type[F_co], *, has_source: bool = False
) -> MediaForm[F_co]:
    """Read the body; raises ApiError. `has_source`: its `video` may be one that is stored."""
    take_source = _stored if has_source else _nothing
    return await read_media_form(http, model, FIELDS, WORDS, take_source)


def _nothing(body: Body) -> None:
    """Take nothing."""


def _stored(body: Body) -> str | None:
    """Take the id of a stored video out of a body, if its `video` is one."""
    video = body.get("video")
    if not isinstance(video, dict) or "id" not in video:
        return None
    if not isinstance(video["id"], str):
        raise invalid("video.id", "must be a string")
    del body["video"]
    return str(video["id"])


def video_body(
    model: type[VideoEditRequest], examples: Mapping[str, Any], *, has_source: bool = False
) -> Schema:
    """Returns the request's body in both media types."""
    return media_body(model, FIELDS, examples, _with_stored if has_source else _nothing)


def _with_stored(schema: Schema) -> None:
    stored = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    schema["properties"]["video"] = {"anyOf": [schema["properties"]["video"], stored]}
    schema["required"] = [*schema["required"], "video"]
