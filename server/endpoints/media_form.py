"""The body of a request with media: a form with files, or JSON with URLs; and its schema."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.openapi.constants import REF_TEMPLATE

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import RequestFields, parse
from omnistage.server.common.json_text import check_values
from omnistage.server.http.form_body import read_fields, typed
from omnistage.server.http.openapi import named_examples
from omnistage.server.http.request import in_thread
from omnistage.server.tasks.videos.media import MediaField, Source, take_media

F_co = TypeVar("F_co", bound=RequestFields, covariant=True)
Body = dict[str, Any]
Schema = dict[str, Any]  # of JSON Schema
FORM = "multipart/form-data"
BOOLEANS = ("true", "false", "True", "False")
URL: Schema = {"type": "string", "description": "data, http, https or file"}
FILE: Schema = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class MediaForm(Generic[F_co]):
    """A request's fields and media as they came; nobody has fetched them or looked at them.

    `source`: the id of a stored video in the field `video`, if it names one.
    """

    asked: F_co
    media: list[Source]
    source: str | None = None


async def read_media_form(
    http: Request,
    model: type[F_co],
    media: Mapping[str, MediaField],
    words: Collection[str],
    take_source: Callable[[Body], str | None] = lambda body: None,
) -> MediaForm[F_co]:
    """Read the body; raises ApiError.

    `media`: the fields that have some. `words`: those that are texts in a form, too. `take_source`:
    takes the id of a stored video out of a body.
    """
    body = await read_fields(http)
    is_form = http.headers.get("content-type", "").lower().startswith(FORM)

    def checked() -> MediaForm[F_co]:
        if not isinstance(body, dict):
            return MediaForm(parse(model, body), [])
        fields: Body = body
        if is_form:
            known = {*model.model_fields, *media}
            fields = {
                name: value if name in words else _of_form(name, value, media, known)
                for name, value in body.items()
            }
            check_values({name: one for name, one in fields.items() if name not in media})
        source = take_source(fields)
        sources = take_media(fields, media)
        return MediaForm(parse(model, fields), sources, source)

    return await in_thread(http, checked)


def _of_form(name: str, value: Any, media: Collection[str], known: Collection[str]) -> Any:
    """A form has words only: those of other fields are what JSON says."""
    if isinstance(value, bytes) and name not in media:
        raise invalid(name, "must not be a file")
    if not isinstance(value, str):
        return value
    if name in media and not (value in BOOLEANS or value.startswith(("{", "["))):
        return value  # a URL
    return typed(value) if name in known else value


def media_body(
    model: type[RequestFields],
    media: Mapping[str, MediaField],
    examples: Mapping[str, Any],
    change: Callable[[Schema], object] = lambda schema: None,
) -> Schema:
    """Returns the request's body in both media types; `change`: something else of their schemas."""
    form, json = (_schema(model, media, one) for one in (FILE, URL))
    for schema in (form, json):
        change(schema)
    named = {"examples": named_examples(examples)} if examples else {}
    content = {FORM: {"schema": form}, "application/json": {"schema": json, **named}}
    return {"required": True, "content": content}


def _schema(model: type[RequestFields], media: Mapping[str, MediaField], one: Schema) -> Schema:
    schema = model.model_json_schema(ref_template=REF_TEMPLATE)
    schema["properties"] |= {name: _medium(field, one) for name, field in media.items()}
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
