"""The description of the API: /openapi.json, and /docs to read and try it.

FastAPI writes it from the routes. A route says by `described` what is its own; errors that many
routes have, and the key, are `responses` and `dependencies` of the app and its routers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Security
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from omnistage.server.http import deadline, request_id
from omnistage.stage_configs.json_types import Json

EVENTS = "text/event-stream"
ERRORS = {
    400: "A field has a wrong value; `param` names it.",
    401: "No API key, or none of the server's.",
    404: "What is named is not there.",
    413: "The body is too large.",
    415: "The body is no JSON in UTF-8, or compressed.",
    416: "The file has no such bytes.",
    429: "The client has asked too often.",
    500: "The server failed.",
    501: "The server lacks what this needs.",
    503: "A stage is not there, or the queue is full: come back later.",
    504: "A stage or the request took longer than its deadline.",
    507: "A stage ran out of memory with this request alone.",
}
WITH_TIME = (429, 503)
EVERYWHERE = (400, 500)
OF_THE_API = (401, 404)
WITH_BODY = (413, 415, 429, 503, 504, 507)

# What a router depends on whose routes want a key. It refuses nobody: KeyGuard has done so before
# the body was read.
WITH_KEY = Security(HTTPBearer(scheme_name="key", auto_error=False))

Responses = dict[int | str, Json]

REQUEST_ID: Json = {
    "name": request_id.HEADER,
    "in": "header",
    "description": "A name for the request, for logs; the answer has it too.",
    "schema": {"type": "string", "pattern": f"^{request_id.ALLOWED.pattern}$"},
}
REQUEST_TIMEOUT: Json = {
    "name": deadline.HEADER,
    "in": "header",
    "description": "By when the answer must be whole, in seconds.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": deadline.MAX_S},
}


class ErrorDetail(TypedDict):
    """An error, and the field to blame if there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    """OpenAI's envelope of an error."""

    error: ErrorDetail


class DescribedApp(FastAPI):
    """An app whose routes can all fail in the ways that every request can."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, docs_url=None, redoc_url=None, responses=errors(*EVERYWHERE))

    def openapi(self) -> Json:
        """FastAPI's own, less the 422 that it adds to every route with fields: ours is a 400.

        The definitions of bodies that FastAPI does not read go where it has those of others.
        """
        spec = super().openapi()
        schemas = spec["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for operations in spec["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    schemas |= content.get("schema", {}).pop("$defs", {})
        return spec


def described(
    summary: str,
    answer: object = None,
    also: Sequence[str] = (),
    *,
    body: Json | None = None,
    more: Responses | None = None,
) -> Json:
    """Arguments of a route: its JSON `answer`, and the other media types that it answers in.

    `body` describes a request's body beside what FastAPI reads itself, None where there is
    no body; `more` are answers with other statuses.
    """
    extra: Json = {"parameters": [REQUEST_ID]}
    if body is not None:
        extra = {"parameters": [REQUEST_ID, REQUEST_TIMEOUT], "requestBody": body}
    route: Json = {
        "summary": summary,
        "response_model": None,
        "responses": {
            200: success("The answer.", answer, also),
            **(more or {}),
            **(errors(*WITH_BODY) if body is not None else {}),
        },
        "openapi_extra": extra,
    }
    if answer is None:
        route["response_class"] = Response
    return route


def success(meaning: str, answer: object = None, also: Sequence[str] = ()) -> Json:
    """An answer that is no error, in JSON and in other media types."""
    content = {"content": {one: _form_of(one) for one in also}}
    return {"description": meaning, **content, **({} if answer is None else {"model": answer})}


def errors(*statuses: int) -> Responses:
    """Errors as `responses` of a route, a router or an app."""
    return {status: _error(status) for status in statuses}


def json_examples(bodies: Mapping[str, object]) -> Json:
    """The body of a route that reads JSON: these are answered with 200."""
    return {"content": {"application/json": {"examples": named_examples(bodies)}}} if bodies else {}


def named_examples(bodies: Mapping[str, object]) -> Json:
    """Bodies by name as a media type has them."""
    return {name: {"value": body} for name, body in bodies.items()}


def _error(status: int) -> Json:
    response: Json = {"description": ERRORS[status], "model": ErrorResponse}
    if status in WITH_TIME:
        schema = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "In seconds.", "schema": schema}}
    return response


def _form_of(media_type: str) -> Json:
    if media_type == EVENTS:
        data = {"type": "string", "contentMediaType": "application/json"}
        event = {"type": "object", "properties": {"data": data}, "description": "One event."}
        return {"schema": event}
    form = {} if media_type.startswith("text/") else {"format": "binary"}
    return {"schema": {"type": "string", **form}}
