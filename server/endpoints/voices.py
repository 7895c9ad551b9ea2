"""GET /v1/audio/voices: what clients with a picker ask a speech server."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter

from omnistage.server.endpoints.answers import Lists
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described, errors
from omnistage.server.runtime.readiness import unavailable


def routes(gateway: Gateway) -> APIRouter:
    """GET /v1/audio/voices."""
    router = APIRouter()

    @router.get("/v1/audio/voices", **described("List the voices", Lists, more=errors(503)))
    async def voices(format: Literal["vllm"] | None = None) -> Mapping[str, Sequence[Any]]:
        names = gateway.runtime.fleet.voices
        speaks = "audio" in gateway.runtime.graph.outputs
        if not names and speaks and gateway.runtime.fleet.unready:
            message = "The voices are not known yet: stages are still loading."
            raise unavailable(message, code="loading")
        cards = [{"id": name, "name": name} for name in names]
        listed = {"voices": names} if format == "vllm" else {"voices": cards, "names": names}
        return {**listed, "uploaded_voices": []}

    return router
