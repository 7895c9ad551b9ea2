"""GET /v1/audio/models: what clients with a picker ask a speech server."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter

from omnistage.server.endpoints.answers import Lists
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described


def routes(gateway: Gateway) -> APIRouter:
    """GET /v1/audio/models."""
    router = APIRouter()
    names = gateway.runtime.graph.served_names

    @router.get("/v1/audio/models", **described("List speech models", Lists))
    async def models() -> Mapping[str, Sequence[Mapping[str, str]]]:
        return {"models": [{"id": name, "name": name} for name in names]}

    return router
