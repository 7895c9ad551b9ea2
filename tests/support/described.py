"""An answer against what the server's own /openapi.json says of it."""

from typing import Any

import httpx
import jsonschema


def assert_described(client: httpx.Client, response: httpx.Response) -> None:
    """Its JSON fits the schema that is there for its path, method and status."""
    specification: dict[str, Any] = client.get("/openapi.json").json()
    operation = specification["paths"][response.url.path][response.request.method.lower()]
    content = operation["responses"][str(response.status_code)]["content"]
    schema = {**content["application/json"]["schema"], "components": specification["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())
