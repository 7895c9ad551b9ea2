"""The description of the API: /openapi.json, and /docs to read and try it.

A route says what is its own, by `described`; what every route has (errors, headers, keys) is added
here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response

from omnistage.server.http import deadline, request_id
from omnistage.server.http.keys import is_guarded

EVENTS = "text/event-stream"
ERRORS = {
    400: "A field has a wrong value; `param` names it.",
    401: "No API key, or none of the server's.",
    404: "What is named is not there.",
    413: "The body is too large.",
    415: "The body is no JSON in UTF-8, or compressed.",
    429: "The client has asked too often.",
    500: "The server failed.",
    503: "A stage is not there, or the queue is full: come back later.",
    504: "A stage or the request took longer than its deadline.",
    507: "A stage ran out of memory with this request alone.",
}
WITH_TIME = (429, 503)
WITH_BODY = (413, 415, 429, 503, 504, 507)

Json = dict[str, Any]


def described(
    summary: str,
    answer: Any = None,
    also: Sequence[str] = (),
    examples: Mapping[str, Any] | None = None,
    errors: Sequence[int] = (),
    also_at: Mapping[int, str] | None = None,
) -> Json:
    """Arguments of a route: its JSON `answer`, the other media types it answers in, and bodies.

    `examples` are bodies that the server answers with 200; `errors` what this route has beside
    the errors of its kind; `also_at` other statuses of the same answer, with what they mean.
    """
    success: Json = {"description": "The answer.", "content": {one: _form_of(one) for one in also}}
    if answer is not None:
        success["model"] = answer
    responses: dict[int, Json] = {200: success, **{status: _error(status) for status in errors}}
    for status, meaning in (also_at or {}).items():
        responses[status] = {**success, "description": meaning}
    route: Json = {"summary": summary, "response_model": None, "responses": responses}
    if answer is None:
        route["response_class"] = Response
    if examples:
        body = {"content": {"application/json": {"examples": named_examples(examples)}}}
        route["openapi_extra"] = {"requestBody": body}
    return route


def named_examples(bodies: Mapping[str, Any]) -> Json:
    """Bodies by name as a media type has them."""
    return {name: {"value": body} for name, body in bodies.items()}


def install_openapi(app: FastAPI, has_keys: bool) -> None:
    """Let the app describe its routes; ErrorResponse is a schema of its description."""

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    routes=app.routes,
                    description=app.description,
                ),
                has_keys,
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's way to change it


def _complete(spec: Json, has_keys: bool) -> Json:
    components = spec.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["ErrorResponse"] = _schema_of_errors()
    components["parameters"] = _parameters()
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in spec["paths"].items():
        for operation in operations.values():
            _complete_operation(path, operation, has_keys)
    return spec


def _complete_operation(path: str, operation: Json, has_keys: bool) -> None:
    operation.pop("description", None)  # an endpoint's docstring, for who reads the code
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own; ours is 400
    statuses = {400, 500}
    if path.startswith("/v1"):
        statuses |= {401, 404}
    if "requestBody" in operation:
        statuses |= set(WITH_BODY)
    for status in sorted(statuses):
        responses.setdefault(str(status), _error(status))
    names = _parameters() if "requestBody" in operation else ("RequestId",)
    references = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    operation["parameters"] = [*operation.get("parameters", ()), *references]
    if has_keys and is_guarded(path):
        operation["security"] = [{"key": []}]


def _error(status: int) -> Json:
    response: Json = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}},
    }
    if status in WITH_TIME:
        schema = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "In seconds.", "schema": schema}}
    return response


def _schema_of_errors() -> Json:
    text, or_null = {"type": "string"}, {"type": ["string", "null"]}
    detail = {"message": text, "type": text, "param": or_null, "code": or_null}
    error = {"type": "object", "required": list(detail), "properties": detail}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _parameters() -> Json:
    return {
        "RequestId": {
            "name": request_id.HEADER,
            "in": "header",
            "description": "A name for the request, for logs; the answer has it too.",
            "schema": {"type": "string", "pattern": f"^{request_id.ALLOWED.pattern}$"},
        },
        "RequestTimeout": {
            "name": deadline.HEADER,
            "in": "header",
            "description": "By when the answer must be whole, in seconds.",
            "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": deadline.MAX_S},
        },
    }


def _form_of(media_type: str) -> Json:
    if media_type == EVENTS:
        data = {"type": "string", "contentMediaType": "application/json"}
        event = {"type": "object", "properties": {"data": data}, "description": "One event."}
        return {"schema": event}
    form = {} if media_type.startswith("text/") else {"format": "binary"}
    return {"schema": {"type": "string", **form}}
