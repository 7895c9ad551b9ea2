"""The body of an image request: a form with files, or JSON with URLs; and its schema."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.openapi.constants import REF_TEMPLATE
from starlette.datastructures import UploadFile

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.server.common.fields import parse
from omnistage.server.common.json_text import check_values
from omnistage.server.http.form_body import NO_FILE, given_items, opened_form, take_extra, typed
from omnistage.server.http.openapi import named_examples
from omnistage.server.http.request import HttpCaller, JsonRequest
from omnistage.server.media.image_load import Source
from omnistage.server.media.images import File
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import checked_part
from omnistage.server.tasks.images.schema import (
    CONTROL_IMAGES,
    IMAGE_URL,
    MAX_CONTROLS,
    WORDS,
    EditRequest,
    GenerationRequest,
    ImageRequest,
)

MAX_IMAGES = 16
MAX_FIELDS = 100
MAX_TEXT_BYTES = 1 << 20
CONTROL = "control_image"
FILE_KEY = re.compile(rf"(image|{CONTROL})(?:\[\d*\])?|mask")
FORM = "multipart/form-data"
EDITS = "/v1/images/edits"

Schema = dict[str, Any]  # of JSON Schema
FILE: Schema = {"type": "string", "format": "binary"}
FILES: Schema = {"type": "array", "maxItems": MAX_CONTROLS, "items": FILE}
F_co = TypeVar("F_co", bound=ImageRequest, covariant=True)


@dataclass(frozen=True, slots=True)
class ImageForm(Generic[F_co]):
    """A request's fields and images as they came; nobody has fetched them or looked at them."""

    asked: F_co
    images: Sequence[Source]
    mask: Source | None
    controls: Sequence[Source] = ()

    @classmethod
    async def read(cls, http: Request, model: type[F_co]) -> "ImageForm[F_co]":
        """Read the body, of an edit by its fields or of a generation; raises ApiError."""
        content_type = http.headers.get("content-type", "").lower()
        if content_type.startswith(FORM):
            return await _read_form(http, model)
        if "json" in content_type:
            request = JsonRequest(http.scope, http.receive)
            body = await request.json()
            return await HttpCaller(request).compute(lambda: _read_json(body, model))
        message = f"The Content-Type must be {FORM} or application/json."
        raise ApiError(415, message, code="unsupported_media_type")


async def _read_form(http: Request, model: type[F_co]) -> ImageForm[F_co]:
    fields: dict[str, Any] = {}
    files: dict[str, list[File]] = {"image": [], "mask": [], CONTROL: []}
    limits = {
        "max_files": MAX_IMAGES + MAX_CONTROLS + 2,
        "max_fields": MAX_FIELDS,
        "max_part_size": MAX_TEXT_BYTES,
    }
    async with opened_form(http, **limits) as form:
        for name, value in given_items(form):
            if take_extra(fields, name, value):
                continue
            found = FILE_KEY.fullmatch(name)
            field = found and (found[1] or "mask")
            if isinstance(value, UploadFile):
                if field is None:
                    raise invalid(name, "must not be a file")
                if field != CONTROL and not _edits(model):
                    raise invalid(name, f"is for {EDITS}: the only files here are {CONTROL}")
                files[field].append(File(name, await value.read()))
            elif field == CONTROL or (field is not None and _edits(model)):
                raise invalid(name, NO_FILE)
            elif name in fields:
                raise invalid(name, "is there twice")
            else:
                fields[name] = _value(name, value, model)
    if len(files["mask"]) > 1:
        raise invalid("mask", "is there twice")
    check_values(fields)
    mask = next(iter(files["mask"]), None)
    return _checked(model, fields, files["image"], mask, files[CONTROL])


def _edits(model: type[ImageRequest]) -> bool:
    return issubclass(model, EditRequest)


def _value(name: str, text: str, model: type[ImageRequest]) -> Any:
    """A form has words only: those of other fields are what JSON says."""
    if name in WORDS or name not in model.model_fields:
        return text
    return typed(text)


def _read_json(body: dict[str, Any], model: type[F_co]) -> ImageForm[F_co]:
    controls = controls_of(body.pop(CONTROL, None))
    if not _edits(model):
        return _checked(model, body, (), None, controls)
    given = body.pop("images", None)
    if not isinstance(given, list) or not given:
        raise invalid("images", "must be a list of objects with an image_url")
    _check_number(given)
    images = [_from_url(image, f"images[{i}]") for i, image in enumerate(given)]
    mask = body.pop("mask", None)
    masked = None if mask is None else _from_url(mask, "mask")
    return _checked(model, body, images, masked, controls)


def controls_of(given: Any) -> list[Medium]:
    """Return the control images of a JSON body: of an object with an `image_url`, or of several.

    Raises ApiError.
    """
    if given is None:
        return []
    if not isinstance(given, list):
        return [_from_url(given, CONTROL)]
    if not 1 <= len(given) <= MAX_CONTROLS:
        raise invalid(CONTROL, f"must have 1 to {MAX_CONTROLS} images")
    return [_from_url(one, f"{CONTROL}[{i}]") for i, one in enumerate(given)]


def _from_url(image: Any, param: str) -> Medium:
    if isinstance(image, dict) and image.get("file_id") is not None:
        raise unsupported(f"{param}.file_id")
    url = image.get("image_url") if isinstance(image, dict) else None
    return Medium.of_part(checked_part({"type": "image_url", "image_url": url}, param), param)


def _checked(
    model: type[F_co],
    fields: Mapping[str, Any],
    images: Sequence[Source],
    mask: Source | None,
    controls: Sequence[Source],
) -> ImageForm[F_co]:
    if _edits(model) and not images:
        raise invalid("image", "is missing: a file to edit")
    _check_number(images)
    if len(controls) > MAX_CONTROLS:
        raise invalid(CONTROL, f"has {len(controls)} files; at most {MAX_CONTROLS}")
    return ImageForm(parse(model, fields), images, mask, controls)


def _check_number(images: Sequence[Any]) -> None:
    if len(images) > MAX_IMAGES:
        raise invalid("image", f"has {len(images)} files; at most {MAX_IMAGES}")


def edit_body(examples: Mapping[str, Any]) -> Schema:
    """The body of an edit in both media types."""
    urls = {"type": "array", "minItems": 1, "maxItems": MAX_IMAGES, "items": IMAGE_URL}
    form = _schema(EditRequest, {"image": FILE}, {"mask": FILE, CONTROL: FILES})
    json = _schema(EditRequest, {"images": urls}, {"mask": IMAGE_URL, CONTROL: CONTROL_IMAGES})
    return _body(form, json, examples)


def generation_body(examples: Mapping[str, Any]) -> Schema:
    """The body of a generation in both media types."""
    form = _schema(GenerationRequest, {}, {CONTROL: FILES})
    return _body(form, _schema(GenerationRequest, {}, {}), examples)


def _body(form: Schema, json: Schema, examples: Mapping[str, Any]) -> Schema:
    named = {"examples": named_examples(examples)} if examples else {}
    content = {FORM: {"schema": form}, "application/json": {"schema": json, **named}}
    return {"required": True, "content": content}


def _schema(
    model: type[ImageRequest], required: Mapping[str, Schema], more: Mapping[str, Schema]
) -> Schema:
    schema = model.model_json_schema(ref_template=REF_TEMPLATE)
    schema["properties"] |= {**required, **more}
    schema["required"] = [*schema["required"], *required]
    return schema
