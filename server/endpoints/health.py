"""Whether the server lives, whether it can serve, and what each stage does."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from omnistage.server.endpoints.answers import Health, Readiness
from omnistage.server.http.openapi import described
from omnistage.server.runtime.readiness import unavailable
from omnistage.server.runtime.runtime import Runtime

STAGE_LOST = "A stage has ended and is not started again: restart the server."


def health_routes(runtime: Runtime) -> APIRouter:
    """GET /health and /ready."""
    router = APIRouter()

    @router.get(
        "/health", **described("Tell what each stage does", Health, also_at={503: STAGE_LOST})
    )
    async def health(response: Response) -> Mapping[str, Any]:
        if runtime.fleet.is_broken:
            response.status_code = 503
        return {"stages": runtime.fleet.health}

    @router.get(
        "/ready", **described("Ask whether every stage can serve", Readiness, errors=(503,))
    )
    async def ready() -> Mapping[str, Any]:
        if runtime.fleet.unready:
            stages = ", ".join(f"{name} ({state})" for name, state in runtime.fleet.unready.items())
            raise unavailable(f"Not ready: {stages}.", code="not_ready")
        asleep = [link.name for link in runtime.fleet.stages.values() if link.record.is_closed]
        if asleep:
            raise unavailable(f"Not ready: {', '.join(asleep)} (asleep).", code="not_ready")
        return {"ready": True}

    return router
