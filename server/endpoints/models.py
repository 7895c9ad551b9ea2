"""The models that the server offers: its graph's one."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from omnistage.server.endpoints.answers import Model, ModelList
from omnistage.server.http.openapi import described
from omnistage.server.http.served import model_not_found


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
