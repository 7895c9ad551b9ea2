"""An answer against what the server's own /openapi.json says of it."""

from typing import Any

import httpx
import jsonschema


def assert_described(
    client: httpx.Client, response: httpx.Response, path: str | None = None
) -> None:
    """Its JSON fits the schema of its path, or of a path with parameters, method and status."""
    specification: dict[str, Any] = client.get("/openapi.json").json()
    operation = specification["paths"][path or response.url.path][response.request.method.lower()]
    content = operation["responses"][str(response.status_code)]["content"]
    schema = {**content["application/json"]["schema"], "components": specification["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())
