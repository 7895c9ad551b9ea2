"""The models that the server offers: its graph's one."""

import time
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import APIRouter

from omnistage.server.endpoints.answers import Model, ModelList
from omnistage.server.errors import ApiError
from omnistage.server.openapi import described


def model_not_found(name: str, served: str) -> ApiError:
    """The refusal of a model that is not served."""
    message = f"The model {name!r} does not exist; this server has {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def check_model(name: str | None, served: str) -> None:
    """Raise ApiError for a request that names another model."""
    if name is not None and name != served:
        raise model_not_found(name, served)


def check_makes(output: str, outputs: Collection[str], called: str) -> None:
    """Raise ApiError if a graph with these outputs makes none that is `called` so."""
    if output not in outputs:
        makes = ", ".join(sorted(outputs))
        message = f"This model makes no {called}; it makes {makes}."
        raise ApiError(400, message, code="unsupported_model")


def model_routes(served: str) -> APIRouter:
    """GET /v1/models and /v1/models/{id}; ids may contain slashes."""
    router = APIRouter()
    card = {"id": served, "object": "model", "created": int(time.time()), "owned_by": "omnistage"}

    @router.get("/v1/models", **described("List the models", ModelList))
    async def models() -> Mapping[str, Any]:
        return {"object": "list", "data": [card]}

    @router.get("/v1/models/{name:path}", **described("Tell of a model", Model))
    async def model(name: str) -> Mapping[str, Any]:
        if name.strip("/") != served.strip("/"):
            raise model_not_found(name, served)
        return card

    return router
