"""The bodies of an edit as JSON Schema, for the API's description; images/form.py reads them."""

from collections.abc import Mapping
from typing import Any

from fastapi.openapi.constants import REF_TEMPLATE

from omnistage.server.http.openapi import named_examples
from omnistage.server.images.form import FORM, MAX_IMAGES
from omnistage.server.images.schema import EditRequest

Schema = dict[str, Any]

FILE: Schema = {"type": "string", "format": "binary"}
URL: Schema = {"type": "string", "format": "uri", "description": "data, http, https or file"}
PLACE: Schema = {"type": "object", "required": ["image_url"], "properties": {"image_url": URL}}


def edit_body(examples: Mapping[str, Any]) -> Schema:
    """The request's body in both media types."""
    form = _with_images("image", FILE)
    urls = {"type": "array", "minItems": 1, "maxItems": MAX_IMAGES, "items": PLACE}
    json = _with_images("images", urls, PLACE)
    content = {
        FORM: {"schema": form},
        "application/json": {"schema": json, "examples": named_examples(examples)},
    }
    return {"required": True, "content": content}


def _with_images(name: str, images: Schema, mask: Schema = FILE) -> Schema:
    schema = EditRequest.model_json_schema(ref_template=REF_TEMPLATE)
    schema.pop("$defs", None)  # FastAPI has them among its own schemas: ImageRequest's are the same
    schema["properties"] |= {name: images, "mask": mask}
    schema["required"] = [*schema["required"], name]
    return schema
