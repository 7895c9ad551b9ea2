"""The body of a request for a video: a form with files, or JSON with URLs; and its schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.openapi.constants import REF_TEMPLATE

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.common.json_text import check_values
from omnistage.server.http.caller import in_thread
from omnistage.server.http.form_body import read_fields, typed
from omnistage.server.http.openapi import named_examples
from omnistage.server.tasks.videos.media import FIELDS, MediaField, Source, take_media
from omnistage.server.tasks.videos.schema import WORDS, VideoEditRequest

F_co = TypeVar("F_co", bound=VideoEditRequest, covariant=True)
Schema = dict[str, Any]  # of JSON Schema
FORM = "multipart/form-data"
BOOLEANS = ("true", "false", "True", "False")
URL: Schema = {"type": "string", "description": "data, http, https or file"}
FILE: Schema = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class VideoForm(Generic[F_co]):
    """A request's fields and media as they came; nobody has fetched them or looked at them.

    `source`: the id of a stored video in the field `video`, if it names one.
    """

    asked: F_co
    media: list[Source]
    source: str | None = None


async def read_video_form(
    http: Request, model: type[F_co], *, has_source: bool = False
) -> VideoForm[F_co]:
    """Read the body; raises ApiError. `has_source`: its `video` may be one that is stored."""
    body = await read_fields(http)
    is_form = http.headers.get("content-type", "").lower().startswith(FORM)
    return await in_thread(http, lambda: _checked(body, model, is_form, has_source))


def _checked(body: Any, model: type[F_co], is_form: bool, has_source: bool) -> VideoForm[F_co]:
    if not isinstance(body, dict):
        return VideoForm(parse(model, body), [])
    if is_form:
        body = {name: _of_form(name, value, model) for name, value in body.items()}
        check_values({name: one for name, one in body.items() if name not in FIELDS})
    source = _stored(body) if has_source else None
    media = take_media(body)
    return VideoForm(parse(model, body), media, source)


def _of_form(name: str, value: Any, model: type[F_co]) -> Any:
    """A form has words only: those of other fields are what JSON says."""
    if isinstance(value, bytes) and name not in FIELDS:
        raise invalid(name, "must not be a file")
    if not isinstance(value, str) or name in WORDS:
        return value
    if name in FIELDS and not (value in BOOLEANS or value.startswith(("{", "["))):
        return value  # a URL
    return typed(value) if name in FIELDS or name in model.model_fields else value


def _stored(body: dict[str, Any]) -> str | None:
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
    content = {
        FORM: {"schema": _schema(model, FILE, has_source)},
        "application/json": {
            "schema": _schema(model, URL, has_source),
            **({"examples": named_examples(examples)} if examples else {}),
        },
    }
    return {"required": True, "content": content}


def _schema(model: type[VideoEditRequest], one: Schema, has_source: bool) -> Schema:
    schema = model.model_json_schema(ref_template=REF_TEMPLATE)
    schema.pop("$defs", None)  # FastAPI has them among its own schemas
    for name, field in FIELDS.items():
        schema["properties"][name] = _medium(field, one)
    if has_source:
        stored = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
        schema["properties"]["video"] = {"anyOf": [schema["properties"]["video"], stored]}
        schema["required"] = [*schema["required"], "video"]
    return schema


def _medium(field: MediaField, one: Schema) -> Schema:
    place = {"type": "object", "required": [field.part], "properties": {field.part: URL}}
    single: Schema = {"anyOf": [one, URL, place] if one is FILE else [URL, place]}
    if field.max_files == 1:
        return single
    return {
        "anyOf": [
            single,
            {"type": "array", "minItems": 1, "maxItems": field.max_files, "items": single},
        ]
    }
