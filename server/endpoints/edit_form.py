"""The body of an edit: a form with files, or JSON with URLs; how it is read, and its schema."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.openapi.constants import REF_TEMPLATE
from starlette.datastructures import UploadFile

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.server.common.fields import parse
from omnistage.server.common.json_text import check_values
from omnistage.server.http.caller import beside_loop
from omnistage.server.http.form_body import NO_FILE, given_items, opened_form, take_extra, typed
from omnistage.server.http.json_body import JsonRequest
from omnistage.server.http.openapi import named_examples
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
)

MAX_IMAGES = 16
MAX_FIELDS = 100
MAX_TEXT_BYTES = 1 << 20
CONTROL = "control_image"
FILE_KEY = re.compile(rf"(image|{CONTROL})(?:\[\d*\])?|mask")
FORM = "multipart/form-data"

Schema = dict[str, Any]  # of JSON Schema
FILE: Schema = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class EditForm:
    """An edit's fields and images as they came; nobody has fetched them or looked at them."""

    asked: EditRequest
    images: Sequence[Source]
    mask: Source | None
    controls: Sequence[Source] = ()

    @classmethod
    async def read(cls, http: Request) -> "EditForm":
        """Read the body; raises ApiError."""
        content_type = http.headers.get("content-type", "").lower()
        if content_type.startswith(FORM):
            return await _read_form(http)
        if "json" in content_type:
            request = JsonRequest(http.scope, http.receive)
            body = await request.json()
            return await beside_loop(request, lambda: _read_json(body))
        message = f"The Content-Type must be {FORM} or application/json."
        raise ApiError(415, message, code="unsupported_media_type")


async def _read_form(http: Request) -> EditForm:
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
            of_file = FILE_KEY.fullmatch(name)
            if isinstance(value, UploadFile):
                if of_file is None:
                    raise invalid(name, "must not be a file")
                files[of_file[1] or "mask"].append(File(name, await value.read()))
            elif of_file is not None:
                raise invalid(name, NO_FILE)
            elif name in fields:
                raise invalid(name, "is there twice")
            else:
                fields[name] = _value(name, value)
    if len(files["mask"]) > 1:
        raise invalid("mask", "is there twice")
    check_values(fields)
    return _checked(fields, files["image"], next(iter(files["mask"]), None), files[CONTROL])


def _value(name: str, text: str) -> Any:
    """A form has words only: those of other fields are what JSON says."""
    if name in WORDS or name not in EditRequest.model_fields:
        return text
    return typed(text)


def _read_json(body: dict[str, Any]) -> EditForm:
    given = body.pop("images", None)
    if not isinstance(given, list) or not given:
        raise invalid("images", "must be a list of objects with an image_url")
    _check_number(given)
    images = [_from_url(image, f"images[{i}]") for i, image in enumerate(given)]
    mask = body.pop("mask", None)
    controls = controls_of(body.pop(CONTROL, None))
    masked = None if mask is None else _from_url(mask, "mask")
    return _checked(body, images, masked, controls)


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
    fields: Mapping[str, Any],
    images: Sequence[Source],
    mask: Source | None,
    controls: Sequence[Source],
) -> EditForm:
    if not images:
        raise invalid("image", "is missing: a file to edit")
    _check_number(images)
    if len(controls) > MAX_CONTROLS:
        raise invalid(CONTROL, f"has {len(controls)} files; at most {MAX_CONTROLS}")
    return EditForm(parse(EditRequest, fields), images, mask, controls)


def _check_number(images: Sequence[Any]) -> None:
    if len(images) > MAX_IMAGES:
        raise invalid("image", f"has {len(images)} files; at most {MAX_IMAGES}")


def edit_body(examples: Mapping[str, Any]) -> Schema:
    """The request's body in both media types."""
    files = {"type": "array", "maxItems": MAX_CONTROLS, "items": FILE}
    form = _with_images("image", FILE, FILE, files)
    urls = {"type": "array", "minItems": 1, "maxItems": MAX_IMAGES, "items": IMAGE_URL}
    json = _with_images("images", urls, IMAGE_URL, CONTROL_IMAGES)
    content = {
        FORM: {"schema": form},
        "application/json": {"schema": json, "examples": named_examples(examples)},
    }
    return {"required": True, "content": content}


def _with_images(name: str, images: Schema, mask: Schema, controls: Schema) -> Schema:
    schema = EditRequest.model_json_schema(ref_template=REF_TEMPLATE)
    schema.pop("$defs", None)  # FastAPI has them among its own schemas: ImageRequest's are the same
    schema["properties"] |= {name: images, "mask": mask, CONTROL: controls}
    schema["required"] = [*schema["required"], name]
    return schema
